"""Each version of each format stands in a golden file, so that it stays readable."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from golden_kit import golden_bytes
from golden_topics_kit import TopicRecord, golden_records

import statekeep
from statekeep.checkpoint.records import Record

PACKAGE = Path(statekeep.__file__).parent
NAME = re.compile(r"_*(?:[A-Z]+_)*(?:VERSION|V[0-9]+)")

FORMATS: dict[str, Callable[[int], bytes]] = {
    "backends/blob/encoded_stream.py FORMAT_VERSION": lambda n: re.escape(
        b"SKSTREAM" + n.to_bytes(4, "little")
    ),
    "backends/blob/index.py SCHEMA_VERSION": lambda n: b'"schema-version":%d[,}]' % n,
    "backends/hdfs/names.py _MARKER_VERSION": lambda n: (
        rb'/hdfs/[^"]*/[0-9]+_[0-9a-f]{32}"'
        if n == 1
        else rb'/hdfs/[^"]*\.(?:delta|snapshot);v=%d;sha256=[0-9a-f]{64}"' % n
    ),
    "backends/kafka/marker.py _VERSION": lambda n: (
        b'"version":%d,"changelog-ssp":.*"content-digest":' % n
    ),
    "checkpoint/framing.py _FORMAT_VERSION": lambda n: b"^statekeep %d [a-z-]+ [0-9a-f]{8} " % n,
    "checkpoint/serde.py _V2": lambda n: b'^{"checkpoint-id":.*"version":%d}' % n,
    "spark/operator/registry.py FORMAT_VERSION": lambda n: b'^{"format_version":%d,' % n,
    "spark/operator/registry.py _FIRST_VERSION": lambda n: b'^{"format_version":%d,' % n,
    "stores/delta.py FORMAT_VERSION": lambda n: re.escape(b"SKDELTA\n" + n.to_bytes(4, "little")),
}
"""By module and constant: what bytes of some version look like."""


FORMS_IN_TOPICS: dict[str, Callable[[TopicRecord], bool]] = {
    "backends/kafka/checkpoint_store.py _SEPARATOR": lambda record: (
        re.fullmatch(rb"[0-9]+-[0-9]+/Partition [0-9]+", record.key or b"") is not None
    ),
    "backends/kafka/epochs.py HEADER": lambda record: "statekeep" in dict(record.headers),
    "backends/kafka/epochs.py _GIVEN_UP": lambda record: (
        "statekeep-given-up" in dict(record.headers)
        and (record.key or b"").startswith(b"statekeep-given-up ")
    ),
    "backends/kafka/job_log.py _FLOOR": lambda record: record.key == b"floor",
}
"""By module and constant: which records have the form. Nothing in a topic says a version of it."""
NOT_IN_RECORDS = re.compile(
    r".*HINT|backends/kafka/(settings\.py .*|names\.py .*|clients\.py _GROUP|cluster\.py _FOREVER|epochs\.py _UNKNOWN)"
)


def constants() -> Iterator[tuple[str, str, object]]:
    """Yield the plain constants of the package's modules: module, name and value."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                    yield module, name, value
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                    yield module, name, value
                case _:
                    pass


def framed_kinds() -> Iterator[str]:
    """Yield the kinds of frames that the package writes, but for the records of the log."""
    values = {(module, name): value for module, name, value in constants()}
    for module in sorted({module for module, _ in values}):
        for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="frame"), args=[ast.Name(id=name), *_]):
                    if module == "checkpoint/records.py":  # the other kinds are tags of records
                        name = "_CHANGED_COMMIT"
                    yield str(values[module, name])
                case _:
                    pass


VERSIONS = {
    f"{module} {name}": value
    for module, name, value in constants()
    if isinstance(value, int) and NAME.fullmatch(name)
}
TOPIC_RECORDS = dict(golden_records())
GOLDEN_BYTES = dict(golden_bytes()) | {n: r.value for n, r in TOPIC_RECORDS.items() if r.value}


def test_it_is_known_what_every_version_of_the_package_looks_like() -> None:
    assert set(VERSIONS) == set(FORMATS)


@pytest.mark.parametrize(
    ("constant", "version"),
    [
        (name, number)
        for name, newest in VERSIONS.items()
        for number in range(2 if name.endswith(" _V2") else 1, newest + 1)
    ],
)
def test_every_version_stands_in_a_golden_file(constant: str, version: int) -> None:
    pattern = re.compile(FORMATS[constant](version), re.DOTALL)
    assert [name for name, data in GOLDEN_BYTES.items() if pattern.search(data)]


@pytest.mark.parametrize("kind", [record.__struct_config__.tag for record in get_args(Record)])
def test_every_kind_of_record_stands_in_a_golden_log(kind: str) -> None:
    head = b"statekeep 1 %s " % kind.encode()
    assert [name for name, data in GOLDEN_BYTES.items() if data.startswith(head)]


@pytest.mark.parametrize("kind", sorted(framed_kinds()))
def test_every_kind_of_frame_stands_in_a_golden_file(kind: str) -> None:
    head = b"statekeep 1 %s " % kind.encode()
    assert [name for name, data in GOLDEN_BYTES.items() if data.startswith(head)]


def test_it_is_known_what_every_form_in_a_topic_looks_like() -> None:
    found = {
        f"{module} {name}"
        for module, name, value in constants()
        if module.startswith("backends/kafka/") and isinstance(value, str | bytes)
    }
    assert {name for name in found if not NOT_IN_RECORDS.fullmatch(name)} == set(FORMS_IN_TOPICS)


@pytest.mark.parametrize("form", FORMS_IN_TOPICS)
def test_every_form_in_a_topic_stands_in_a_golden_topic(form: str) -> None:
    assert [name for name, record in TOPIC_RECORDS.items() if FORMS_IN_TOPICS[form](record)]
