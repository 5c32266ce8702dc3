"""README.md and the pages in docs/: every program, setting and command on them is tested."""

import base64
import inspect
import re
import shlex
import subprocess
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from pages_kit import PAGES, ROOT, block, blocks, commands, printed, text_of
from pyspark.sql import DataFrame
from typer.core import TyperGroup
from typer.main import get_command

import statekeep
from statekeep.backends.kafka.marker import KafkaStateCheckpointMarker
from statekeep.checkpoint.checkpoints import Marker
from statekeep.cli.app import app
from statekeep.commit.metrics import COUNTERS, GAUGES, TIMERS
from statekeep.config.load import load_properties
from statekeep.config.lookup import find_key
from statekeep.spark.dataframe import _STATELESS
from statekeep.spark.fenced_sinks import FENCE_TABLE
from statekeep.spark.sinks import _OTHERS, FILE_FORMATS

PARSED = "scripts/check_docs.py"
"""Needs what no test machine has, such as a database, or has holes: its syntax is checked."""
ON_SPARK = "tests/spark/test_pages_on_spark.py"
README = "tests/spark/test_readme_on_spark.py"
START = "tests/spark/test_start_page.py"
MIGRATION = "tests/unit/cli/test_migration_page.py"
MONITOR = "tests/unit/metrics/test_monitor_page.py"
CHANGES = "tests/unit/cli/test_cli_state_changes.py"
CLONES = "tests/unit/cli/test_cli_clones.py"
AFTER = "docs/how-to/after-the-operator.md"
BACKEND = "docs/how-to/write-a-backend.md"
DELTA = "tests/integration/test_delta_sink.py"
KILLED = "tests/integration/test_killed_sinks.py"
PROGRAMS = {
    "README.md": {("Use it", README)},
    "docs/start.md": {("A first job", START), ("Look at the state", START)},
    "docs/how-to/rescale.md": {("A query on Spark", ON_SPARK)},
    "docs/how-to/read-state.md": {
        ("", README),
        ("Print it", README),
        ("A part of it", ON_SPARK),
        ("As it was", ON_SPARK),
        ("What has changed", ON_SPARK),
        ("As a DataFrame", ON_SPARK),
        ("A query without settings", ON_SPARK),
        ("A job in plain Python", "tests/unit/state/test_plain_state.py"),
    },
    "docs/how-to/change-state.md": {
        ("", CHANGES),
        ("Put values", CHANGES),
        ("Delete keys", CHANGES),
        ("While the query runs", "tests/spark/test_changed_state.py"),
    },
    "docs/how-to/clone.md": {("", CLONES), ("Make a clone", CLONES)},
    "docs/how-to/guard.md": {("Copy", "tests/spark/test_query_guard.py")},
    "docs/how-to/replay-a-batch.md": {("The program", ON_SPARK), ("In a notebook", ON_SPARK)},
    "docs/how-to/operate.md": {
        ("Watch", ON_SPARK),
        ("Find out what is wrong", "tests/spark/test_doctor.py"),
    },
    "docs/reference/metrics.md": {
        ("On Spark: the query", "tests/spark/test_writer_and_query.py"),
    },
    "docs/how-to/monitor.md": {("OpenTelemetry", MONITOR), ("A listener of yours", MONITOR)},
    "docs/how-to/import-from-spark.md": {
        ("Back to Spark", ON_SPARK),
        ("Import", ON_SPARK),
        ("Start it here", ON_SPARK),
    },
    "docs/how-to/arrow.md": {
        ("", ON_SPARK),
        ("State", ON_SPARK),
        ("Fewer rows in the shuffle", ON_SPARK),
    },
    AFTER: {("Another operator", "tests/spark/test_operators_in_a_row.py")},
    "docs/how-to/move-state.md": {
        ("In short, on Spark", README),
        ("A job to try it with", MIGRATION),
    },
    BACKEND: {
        ("In short", "tests/conformance/test_tape_backend.py"),
        ("What you provide", PARSED),
        ("Proving it", PARSED),
        ("Only a client: a `BlobStoreManager`", PARSED),
    },
    "docs/how-to/sinks.md": {
        ("A driver that was paused", ON_SPARK),
        ("Upsert into a database", KILLED),
        ("Large batches", KILLED),
        ("A directory for each batch", ON_SPARK),
        ("Delta Lake", DELTA),
        ("Kafka", KILLED),
    },
    "docs/coming-from/transform-with-state.md": {("", README)},
    "docs/coming-from/apply-in-pandas-with-state.md": {("", ON_SPARK), ("As a class", ON_SPARK)},
    "docs/reference/kafka.md": {
        ("Reading topics on Spark", PARSED),
        ("State that expires", "tests/unit/stores/test_state_that_expires.py"),
    },
    "docs/developing/crash-harness.md": {("Fault points in any process", PARSED)},
}
"""By page: below which heading a program stands, and what runs it."""


def test_it_is_known_what_runs_each_program_of_the_pages() -> None:
    found = {
        page: {heading for heading, language, _ in printed(page) if language in {"python", "diff"}}
        for page in PAGES
    }
    assert {page: headings for page, headings in found.items() if headings} == {
        page: {heading for heading, _ in programs} for page, programs in PROGRAMS.items()
    }
    for programs in PROGRAMS.values():
        for _, test in programs:
            assert (ROOT / test).is_file(), test


CODE = "\n".join(
    path.read_text(encoding="utf-8") for path in Path(statekeep.__file__).parent.rglob("*.py")
)

CLUSTER = "tests/integration/spark/test_spark_cluster.py"
SAMPLES = {"docs/reference/formats.md": "tests/unit/checkpoint/test_formats_page.py"}
"""What stored formats look like: decoded, whatever the language of the block."""
OTHERS = {
    "docs/start.md": {("A first crash", "text", "tests/unit/test_pages.py")},
    "docs/how-to/cluster.md": {
        ("Give executors the package", "bash", CLUSTER),
        ("Kubernetes", "bash", "tests/unit/test_pages.py"),  # its syntax: there is no such cluster
        ("Kubernetes", "dockerfile", "docs/how-to/cluster.md"),  # not run, as "What was run" says
    },
    "docs/how-to/sinks.md": {("Upsert into a database", "sql", KILLED)},
    BACKEND: {
        ("In short", "toml", "tests/unit/test_readme.py"),
        ("What you provide", "toml", PARSED),
    },
    "docs/reference/kafka.md": {("The marker", "json", "tests/unit/test_pages.py")},
    "docs/developing/architecture.md": {("Layers", "", "pyproject.toml")},  # import-linter's layers
}
"""By page: below which heading a block of another kind stands, and what runs or reads it."""
_CHECKED_ABOVE = {"python", "diff", "properties", "console"}


def test_it_is_known_what_reads_each_block_that_is_no_program_setting_or_command() -> None:
    found = {
        page: {
            (heading, language)
            for heading, language, _ in printed(page)
            if language not in _CHECKED_ABOVE
        }
        for page in PAGES
        if page not in SAMPLES
    }
    assert {page: blocks for page, blocks in found.items() if blocks} == {
        page: {(heading, language) for heading, language, _ in read}
        for page, read in OTHERS.items()
    }
    readers = [reader for read in OTHERS.values() for _, _, reader in read]
    for reader in [*readers, *SAMPLES.values()]:
        assert (ROOT / reader).is_file(), reader


@pytest.mark.parametrize("text", blocks("docs/how-to/cluster.md", "Kubernetes", "bash"))
def test_the_shell_can_read_the_commands_that_no_test_runs(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_marker_of_kafka_is_read_as_printed() -> None:
    sample = Marker(block("docs/reference/kafka.md", "The marker", "json"))
    marker = KafkaStateCheckpointMarker.decode(sample)
    assert marker.version == "2_2787f1d947614667"
    assert marker.content.live_keys == 999


def test_the_table_of_the_upserts_is_made_as_printed() -> None:
    printed_table = block("docs/how-to/sinks.md", "Upsert into a database", "sql")
    assert printed_table.split() == FENCE_TABLE.split()


@pytest.mark.parametrize("line", block("docs/start.md", "A first crash", "text").splitlines())
def test_the_code_writes_the_lines_of_the_log_that_the_start_page_shows(line: str) -> None:
    level, name, message = line.split(maxsplit=2)
    assert (level, name) == ("INFO", "statekeep:")
    text, _, facts = message.partition(": ")
    assert re.sub(r" \d+$", " %d", text) in CODE
    for key in re.findall(r"(\w+)=", facts):
        assert f"{key}=%" in CODE or key.endswith("_s")  # a phase of the start


RUN = {
    "docs/start.md": START,
    "docs/how-to/change-state.md": CHANGES,
    "docs/how-to/choose-a-backend.md": ON_SPARK,
    "docs/how-to/clone.md": CLONES,
    "docs/how-to/guard.md": "tests/unit/guard/test_guard_copies.py",
    "docs/how-to/import-from-spark.md": ON_SPARK,
    "docs/how-to/move-state.md": MIGRATION,
    "docs/how-to/operate.md": ON_SPARK,
    "docs/how-to/read-state.md": ON_SPARK,
    "docs/how-to/replay-a-batch.md": ON_SPARK,
    "docs/how-to/rescale.md": ON_SPARK,
    "docs/how-to/savepoints.md": ON_SPARK,
}
"""By page: the test that runs its commands."""


def test_the_commands_of_the_pages_are_run_by_a_test() -> None:
    with_commands = {
        page for page in PAGES if any(line.startswith("statekeep ") for line in commands(page))
    }
    assert with_commands == RUN.keys()
    for page, test in RUN.items():
        assert Path(page).stem in text_of(test)


SETTINGS = [
    pytest.param(text, id=f"{page} {heading} {number}")
    for page in PAGES
    for number, (heading, language, text) in enumerate(printed(page))
    if language == "properties" and page != BACKEND  # those name a backend of the reader's own
]


@pytest.mark.parametrize("text", SETTINGS)
def test_the_settings_of_the_pages_are_accepted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.properties"
    path.write_text(text)
    config = load_properties(path)
    if config.settings.get("job.name") is not None and config.backend_names():
        config.check()


@pytest.mark.parametrize("page", PAGES)
def test_no_line_of_settings_ends_with_a_comment(page: str) -> None:
    # In a Java .properties file it would be a part of the value.
    lines = [
        line
        for _, kind, text in printed(page)
        if kind == "properties"
        for line in text.splitlines()
    ]
    assert [line for line in lines if "#" in line.lstrip()[1:]] == []


COMMANDS = sorted({line for page in PAGES for line in commands(page)})


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("statekeep ")])
def test_the_command_line_knows_the_commands_of_the_pages(line: str) -> None:
    _, *words = shlex.split(line)
    command: Any = get_command(app)
    while isinstance(command, TyperGroup):
        _, command, words = command.resolve_command(command.context_class(command), words)
    command.make_context("statekeep", words).close()  # a wrong option or argument raises


_NO_COMMANDS = ("does not run", "key", "seal", "stream")
"""An error, and what formats call things."""
MENTIONED = sorted(
    {
        span
        for page in PAGES
        for span in re.findall(r"`statekeep ([a-z][^`]*)`", text_of(page))
        if not page.startswith("docs/decisions/") and not span.startswith(_NO_COMMANDS)
    }
)


@pytest.mark.parametrize("words", MENTIONED)
def test_the_command_line_knows_what_pages_mention_of_it(words: str) -> None:
    command: Any = get_command(app)
    left = words.split()
    while isinstance(command, TyperGroup) and left and not left[0].startswith("-"):
        _, command, left = command.resolve_command(command.context_class(command), left)
    known = {option for parameter in command.params for option in parameter.opts}
    assert {*re.findall(r"--[a-z-]+|(?<= )-[a-z]\b", words)} <= known | {"--install-completion"}


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("make ")])
def test_make_knows_the_targets_of_the_pages(line: str) -> None:
    dry_run = ["make", "--dry-run", *shlex.split(line)[1:]]
    assert subprocess.run(dry_run, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_command_for_a_key_prints_one() -> None:
    (line,) = [line for line in COMMANDS if line.startswith("echo ")]
    printed_line = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    _, key = printed_line.stdout.split()
    assert len(base64.b64decode(key, validate=True)) == 32


def test_every_other_command_of_the_pages_is_known_to_a_test() -> None:
    others = [line for line in COMMANDS if not line.startswith(("statekeep ", "make ", "echo "))]
    assert {line.partition("'")[0] for line in others} == {
        "pip install ",  # test_readme.py: the extras
        "pkill -9 -f job.py",  # test_start_page.py
        "python job.py",  # test_start_page.py, test_migration_page.py
        "python read.py",  # test_start_page.py
        "rm -r /tmp/first-job/local",  # test_start_page.py
        "python -m examples.kafka_consumer --servers broker-1:9092 --topic words --local-dir ./local",
        "spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 job.py",  # the jars: DELTA
    }


ERRORS = re.findall(r"^\| `([^`]+)` \|", text_of("docs/how-to/troubleshoot.md"), re.MULTILINE)


@pytest.mark.parametrize("error", ERRORS)
def test_the_code_raises_the_errors_that_people_look_for(error: str) -> None:
    assert error in CODE


SAMZA = "docs/coming-from/samza.md"


@pytest.mark.parametrize("name", re.findall(r"\| `((?:statekeep|sk)\.[\w.]+)`", text_of(SAMZA)))
def test_what_samzas_names_are_called_here_is_there(name: str) -> None:
    resolve_name(re.sub(r"^sk\.", "statekeep:", name))


METRICS = [
    *COUNTERS,
    *TIMERS,
    *GAUGES,
    *re.findall(r'"([a-z]\w+)": ', CODE[CODE.index('"customMetrics": {') :].partition("}")[0])[1:],
]


@pytest.mark.parametrize("name", METRICS)
def test_the_page_of_metrics_has_all_of_them(name: str) -> None:
    assert f"`{name}`" in text_of("docs/reference/metrics.md")


_KEY = re.compile(
    r"`((?:job|task|stores|kafka|blob\.store|hdfs\.store|checkpoint\.(?:retain|local)|backends)\.[a-z0-9.<>-]+)(?: = [^`]*)?`"
)
_NO_KEYS = {"job.properties", "job.py", "backends.old", "blob.store.<key>", "task.max.in.flight"}
"""Files, and parts of keys."""
_OLDER = ("docs/decisions/", "docs/coming-from/samza.md", "docs/reference/settings.md")
NAMED = sorted(
    {
        (page, key)
        for page in PAGES
        if not page.startswith(_OLDER)
        for key in {*_KEY.findall(text_of(page))} - _NO_KEYS
    }
)


@pytest.mark.parametrize(("page", "key"), NAMED)
def test_the_settings_that_pages_name_are_known(page: str, key: str) -> None:
    if key.endswith("."):  # the beginning of keys
        assert f"`{key}" in text_of("docs/reference/settings.md") or key.startswith("backends.")
    else:
        find_key(re.sub(r"<\w+>", "s1", key), page)


_DEFAULT = re.compile(
    r"`((?:job|task|stores|kafka|blob\.store|hdfs\.store|checkpoint)\.[a-z0-9.<>-]+)`"
    r" \((a|two|\d[\d.]*)( (?:MiB|seconds|minutes?))?[);]"
)
_UNITS = {"": 1, " MiB": 1 << 20, " seconds": 1_000, " minute": 60_000, " minutes": 60_000}
DEFAULTS = sorted(
    {
        (page, *found)
        for page in PAGES
        if page not in _OLDER
        for found in _DEFAULT.findall(text_of(page))
        if found[0] not in _NO_KEYS
    }
)


@pytest.mark.parametrize(("page", "key", "number", "unit"), DEFAULTS)
def test_the_defaults_that_pages_name_are_right(
    page: str, key: str, number: str, unit: str
) -> None:
    value = float({"a": "1", "two": "2"}.get(number, number)) * _UNITS[unit]
    assert value == find_key(re.sub(r"<\w+>", "s1", key), page).key.default


def test_the_page_lists_what_works_after_the_operator() -> None:
    rows = re.findall(
        r"^\| (?!works)[a-z ]+ \| (.*) \|$", text_of(AFTER).partition("##")[0], re.MULTILINE
    )
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == _STATELESS


def test_what_works_after_the_operator_gives_a_frame_on_spark() -> None:
    """What gives a column, such as `colRegex`, cannot be chained."""
    kinds = {inspect.signature(getattr(DataFrame, name)).return_annotation for name in _STATELESS}
    assert kinds == {"DataFrame"}


@pytest.mark.parametrize("name", [*FILE_FORMATS, *_OTHERS])
def test_the_page_lists_every_sink(name: str) -> None:
    assert re.search(rf'`(format\(")?{name}("\))?`', text_of(AFTER)) is not None
