"""What a commit costs in requests: a formula in the number of tasks, and the table on the page."""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from typing_extensions import override

import statekeep as sk
from benchmarks.counted_objects import BUCKET, counted_memory
from benchmarks.requests import (
    COMMITS_A_CLEAN_UP,
    OPERATIONS,
    Row,
    dollars_a_day,
    measure_in_memory,
    measure_plain_in_memory,
    measure_plain_starts_in_memory,
)
from statekeep.events import RequestDone
from statekeep.spark.sidecar import work

KINDS = {"put": "PUT", "get": "GET", "init": "HEAD", "list": "LIST", "delete": "DELETE"}
"""What S3 calls the operations of the counters."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "blob-stores.md"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing here is to outlive a crash, and all uploads of a commit begin at once."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(work, "QUIET_S", 0)
    return iter([None])


@cache
def rows(tasks: int, changed: int, stores: int = 1, backends: int = 1) -> Mapping[str, Row]:
    return {row.what: row for row in measure_in_memory(tasks, changed, stores, backends)}


def formula(changed: int, stores: int = 1, backends: int = 1) -> dict[str, float]:
    """Return the requests of a commit that changes some tasks, all stores of each, in one container."""
    each = 1 / COMMITS_A_CLEAN_UP
    copies = changed * stores * backends
    return {
        # A changed store of a task, in each backend: its index, with the changes. All of them: a pack
        # of entries. The job: records of batch, attempt and commit, and its events; now and then a
        # release and a floor.
        "PUT": copies + (1 if changed else 0) + 4 + 2 * each,
        # The pack of entries; now and then the index of each changed store, and a full one.
        "GET": (1 if changed else 0) + 2 * copies * each,
        "HEAD": changed * backends * each,
        # A look for entries, and one at the floor after a batch and a commit; now and then the blobs of
        # each changed task in each backend, entries, records, floors, and what puts that never ended
        # have left.
        "LIST": 3 + (changed * backends + 7) * each,
    }


def formula_of_a_start(backends: int = 1, *, is_first: bool) -> dict[str, float]:
    """Return the requests of the driver at a start, whatever the number of tasks and stores."""
    more = backends - 1
    return {
        "PUT": (13 if is_first else 12) + 6 * more,
        "GET": (4 if is_first else 9) + 2 * more,
        "HEAD": 2 + more,
        "LIST": (14 if is_first else 13) + 3 * more,
    }


def plain_formula(tasks: int, changed: int) -> dict[str, float]:
    """Return the requests of a commit of each task of a container in plain Python.

    Each task has a log of its own.
    """
    each = 1 / COMMITS_A_CLEAN_UP
    return {
        # A changed task: its index, with the changes, and its events. Each: the records of attempt
        # and commit; now and then a release. One without an upload has events for every second
        # request. The log is trimmed after some clean-ups.
        "PUT": 2 * changed + (tasks - changed) / 2 + (2 + each) * tasks,
        "GET": each * changed,
        "HEAD": 0,
        # One at the floor after a commit or a release; now and then the blobs of a changed task.
        "LIST": (1 + each) * tasks + each * changed,
    }


def plain_formula_of_a_start(tasks: int, *, is_first: bool) -> dict[str, float]:
    """Return the requests of the start of a container in plain Python, with all its tasks."""
    if is_first:
        return {"PUT": 6 + 7 * tasks, "GET": 4 * tasks, "HEAD": 4 * tasks, "LIST": 17 * tasks - 2}
    return {
        "PUT": 6 + 7 * tasks,
        "GET": 2 + 6 * tasks,
        "HEAD": 1 + 2 * tasks,
        "LIST": 3 + 10 * tasks,
    }


def matches(made: Mapping[str, float], expected: Mapping[str, float]) -> bool:
    return all(made.get(k, 0) == pytest.approx(n, abs=0.1) for k, n in expected.items())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tasks", [2, 8, 64])
def test_a_commit_makes_a_request_for_each_task_that_changed_and_a_few_for_the_job(
    tasks: int,
) -> None:
    made = rows(tasks, tasks)["commit"].requests
    assert matches(made, formula(tasks)), made
    assert made["DELETE"] < 1
    assert made["bytes put"] < tasks * 20_000


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_task_that_did_not_change_costs_no_request() -> None:
    assert matches(rows(16, 2)["commit"].requests, formula(2))
    assert matches(rows(8, 0)["commit"].requests, formula(0))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("stores", "backends"), [(2, 1), (3, 1), (1, 2), (2, 2)])
def test_each_store_and_backend_of_a_task_that_changed_costs_a_request(
    stores: int, backends: int
) -> None:
    made = rows(4, 4, stores, backends)["commit"].requests
    assert matches(made, formula(4, stores, backends)), made
    assert matches(rows(4, 0, stores, backends)["commit"].requests, formula(0))
    # The aim: at most three for each task that changed, beside those of the job.
    own = sum(made.get(kind, 0) for kind in OPERATIONS) - sum(formula(0).values())
    assert own <= 3 * 4 * stores * backends


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("tasks", "stores", "backends"), [(2, 1, 1), (8, 1, 1), (4, 2, 1), (4, 1, 2)]
)
def test_a_start_makes_as_many_requests_for_one_task_as_for_many(
    tasks: int, stores: int, backends: int
) -> None:
    found = rows(tasks, tasks, stores, backends)
    first, again = found["first start"].requests, found["start"].requests
    assert matches(first, formula_of_a_start(backends, is_first=True)), first
    assert matches(again, formula_of_a_start(backends, is_first=False)), again


class Counting(sk.Listener):
    """Adds up the requests that are reported."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @override
    def on_event(self, event: sk.Event, source: sk.EventSource, /) -> None:
        if isinstance(event, RequestDone):
            self.counts[event.operation] += event.count

    @override
    def close(self) -> None:
        """The counts stay."""


async def two_commits(listener: sk.Listener, directory: Path) -> None:
    config = sk.load_dict(
        {
            "job.name": "j",
            "job.logged.store.base.dir": str(directory),
            "stores.default.factory": "memory",
            "stores.backup.factories": "blob,far",
            "blob.store.uri": f"s3://{BUCKET}/j",
            "backends.far.factory": "blob",
            "backends.far.uri": f"s3://{BUCKET}/far",
            "task.commit.ms": "0",
        }
    )
    async with sk.Container(config, listeners=[listener]) as container:
        task = await container.start_task("Partition 0", ["a", "b"])
        for number in range(2):
            task.store("a").put(b"key", b"%d" % number)
            offset = {sk.SystemStreamPartition("kafka", "orders", 0): str(number)}
            await (await task.commit(offset)).wait()
        await task.wait()


def test_the_counters_have_each_request_that_the_service_gets(tmp_path: Path) -> None:
    listener = Counting()
    with counted_memory() as served:
        asyncio.run(two_commits(listener, tmp_path))
    counted = listener.counts
    assert counted["connect"] > 0  # no request of S3, where a client is just made
    assert {kind: counted[name] for name, kind in KINDS.items()} == {
        # A start takes back what it uploads as a trial, in each backend, without a report.
        **{kind: served[kind] for kind in ("PUT", "GET", "HEAD")},
        "LIST": served["LIST"] - 2,
        "DELETE": served["DELETE"] - 2,
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tasks", [2, 8, 64])
def test_a_commit_of_a_task_in_plain_python_makes_a_request_for_its_state_and_four_for_its_log(
    tasks: int,
) -> None:
    made = measure_plain_in_memory(tasks, tasks).requests
    assert matches(made, plain_formula(tasks, tasks)), made
    assert made["bytes put"] < tasks * 20_000


@pytest.mark.slow
def test_a_task_in_plain_python_that_did_not_change_uploads_nothing() -> None:
    made = measure_plain_in_memory(8, 2).requests
    assert matches(made, plain_formula(8, 2)), made


@pytest.mark.slow
def test_an_idle_task_in_plain_python_makes_no_request() -> None:
    made = measure_plain_in_memory(8, 2, is_idle=True).requests
    assert matches(made, plain_formula(2, 2)), made


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_a_start_in_plain_python_makes_the_same_requests_for_each_task(tasks: int) -> None:
    first, again = (row.requests for row in measure_plain_starts_in_memory(tasks))
    assert matches(first, plain_formula_of_a_start(tasks, is_first=True)), first
    assert matches(again, plain_formula_of_a_start(tasks, is_first=False)), again


def plain_section() -> str:
    text = PAGE.read_text(encoding="utf-8")
    return text.partition("\n### In plain Python\n")[2].partition("\n## ")[0]


def test_the_page_says_what_a_commit_in_plain_python_costs() -> None:
    row = r"^\| ([0-9]+) \| ([0-9]+) \| (.*) \|$"
    table = re.findall(row, plain_section(), re.MULTILINE)
    assert [(tasks, changed) for tasks, changed, _ in table] == [
        ("1", "1"),
        ("8", "8"),
        ("64", "64"),
        ("8", "2"),
    ]
    for tasks, changed, cells in table:
        expected = plain_formula(int(tasks), int(changed))
        figures = [f"{expected[kind]:.1f}" for kind in OPERATIONS if kind != "DELETE"]
        assert cells.split(" | ") == [*figures, f"{dollars_a_day(expected):.2f}"]


@pytest.mark.parametrize("start", ["first", "later"])
def test_the_page_says_what_a_start_in_plain_python_costs(start: str) -> None:
    made = re.search(rf"^\| {start} \| (.*) \|$", plain_section(), re.MULTILINE)
    assert made is not None
    for tasks in (1, 5):
        expected = plain_formula_of_a_start(tasks, is_first=start == "first")
        for cell, wanted in zip(made[1].split(" | "), expected.values(), strict=True):
            terms = re.sub(r"([0-9]+) N", rf"\1 * {tasks}", cell)
            assert eval(terms) == wanted  # noqa: S307 - a sum on our own page


def test_the_page_says_what_the_formula_says() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n### In plain Python\n")[0]
    section = text.partition("\n## Requests\n")[2]
    row = r"^\| (none|[0-9]+) \| ([0-9]) \| ([0-9]) \| (.*) \|$"
    table = re.findall(row, section.partition("\n## ")[0], re.MULTILINE)
    assert [name for name, *_ in table] == ["none", "2", "8", "64", "200", "64", "64", "64"]
    for name, stores, backends, cells in table:
        expected = formula(0 if name == "none" else int(name), int(stores), int(backends))
        figures = [f"{expected[kind]:.1f}" for kind in OPERATIONS if kind != "DELETE"]
        assert cells.split(" | ") == [*figures, f"{dollars_a_day(expected):.2f}"]


@pytest.mark.parametrize("start", ["first", "later"])
def test_the_page_says_what_a_start_costs(start: str) -> None:
    made = re.search(rf"^ +\| {start} \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert made is not None
    one, two = (formula_of_a_start(n, is_first=start == "first") for n in (1, 2))
    assert made[1].split(" | ") == [
        f"{one[kind]} + {two[kind] - one[kind]} (B - 1)" for kind in one
    ]
