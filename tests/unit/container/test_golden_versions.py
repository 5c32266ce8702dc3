"""Each version of each format stands in a golden file, so that it is read for ever."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from golden_kit import golden_bytes

import statekeep
from statekeep.checkpoint.records import Record

PACKAGE = Path(statekeep.__file__).parent
NAME = re.compile(r"_*(?:[A-Z]+_)*(?:VERSION|V[0-9]+)")

FORMATS: dict[str, Callable[[int], bytes]] = {
    "backends/blob/encoded_stream.py FORMAT_VERSION": lambda n: re.escape(
        b"SKSTREAM" + n.to_bytes(4, "little")
    ),
    "backends/blob/index.py SCHEMA_VERSION": lambda n: b'"schema-version":%d[,}]' % n,
    "backends/kafka/marker.py _VERSION": lambda n: (
        b'"version":%d,"changelog-ssp":.*"content-digest":' % n
    ),
    "checkpoint/framing.py _FORMAT_VERSION": lambda n: b"^statekeep %d [a-z-]+ [0-9a-f]{8} " % n,
    "checkpoint/serde.py _V2": lambda n: (
        b'^{"checkpoint-id":.*"version":2}' if n == 2 else b'"SystemStreamPartition .*"offset":'
    ),
    "spark/operator/registry.py FORMAT_VERSION": lambda n: b'^{"format_version":%d,' % n,
    "stores/delta.py FORMAT_VERSION": lambda n: re.escape(b"SKDELTA\n" + n.to_bytes(4, "little")),
}
"""By module and constant: what bytes of some version look like."""


def version_constants() -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of the package that are versions by their names."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=int(value))):
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(value))):
                    pass
                case _:
                    continue
            if NAME.fullmatch(name):
                yield f"{path.relative_to(PACKAGE).as_posix()} {name}", value


VERSIONS = dict(version_constants())
GOLDEN_BYTES = dict(golden_bytes())


def test_it_is_known_what_every_version_of_the_package_looks_like() -> None:
    assert set(VERSIONS) == set(FORMATS)


@pytest.mark.parametrize(
    ("constant", "version"),
    [(name, number) for name, newest in VERSIONS.items() for number in range(1, newest + 1)],
)
def test_every_version_stands_in_a_golden_file(constant: str, version: int) -> None:
    pattern = re.compile(FORMATS[constant](version), re.DOTALL)
    assert [name for name, data in GOLDEN_BYTES.items() if pattern.search(data)]


@pytest.mark.parametrize("kind", [record.__struct_config__.tag for record in get_args(Record)])
def test_every_kind_of_record_stands_in_a_golden_log(kind: str) -> None:
    head = b"statekeep 1 %s " % kind.encode()
    assert [name for name, data in GOLDEN_BYTES.items() if data.startswith(head)]
