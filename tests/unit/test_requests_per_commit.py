"""What a commit costs in requests: a formula in the number of tasks, and the table on the page."""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from benchmarks.requests import (
    COMMITS_A_CLEAN_UP,
    OPERATIONS,
    Row,
    dollars_a_day,
    measure_in_memory,
    measure_plain_in_memory,
)
from statekeep.spark.container import entries

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "blob-stores.md"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing here is to outlive a crash, and all uploads of a commit begin at once."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(entries, "QUIET_S", 0)
    return iter([None])


@cache
def rows(tasks: int, changed: int) -> Mapping[str, Row]:
    return {row.what: row for row in measure_in_memory(tasks, changed)}


def formula(changed: int) -> dict[str, float]:
    """Return the requests of a commit that changes some tasks, in one container."""
    each = 1 / COMMITS_A_CLEAN_UP
    return {
        # A changed task: its index, with the changes. All of them: a pack of entries. The job:
        # records of batch, attempt and commit, and its events; now and then a release and a floor.
        "PUT": changed + (1 if changed else 0) + 4 + 2 * each,
        # The pack of entries; now and then the index of each changed task, and a full one.
        "GET": (1 if changed else 0) + 2 * changed * each,
        "HEAD": changed * each,
        # A look for entries and one at the floor after each record; now and then the blobs of each
        # changed task, entries, records, floors, and what puts that never ended have left.
        "LIST": 4 + (changed + 7) * each,
    }


def plain_formula(tasks: int) -> dict[str, float]:
    """Return the requests of a commit of each task of a container in plain Python.

    Each task has a log of its own.
    """
    each = 1 / COMMITS_A_CLEAN_UP
    return {
        # Its index, with the changes; the records of attempt and commit, and its events; now and
        # then a release. The log is trimmed after some clean-ups.
        "PUT": (4 + each) * tasks,
        "GET": each * tasks,
        "HEAD": 0,
        # One at the floor after each record; now and then its blobs.
        "LIST": (2 + 2 * each) * tasks,
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
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tasks", [2, 8, 64])
def test_a_commit_of_a_task_in_plain_python_makes_a_request_for_its_state_and_five_for_its_log(
    tasks: int,
) -> None:
    made = measure_plain_in_memory(tasks, tasks).requests
    assert matches(made, plain_formula(tasks)), made
    assert made["bytes put"] < tasks * 20_000


def test_the_page_says_what_the_formula_says() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Requests\n")[2]
    table = re.findall(
        r"^\| (none|[0-9]+) \| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE
    )
    assert [name for name, _ in table] == ["none", "2", "8", "64", "200"]
    for name, cells in table:
        expected = formula(0 if name == "none" else int(name))
        figures = [f"{expected[kind]:.1f}" for kind in OPERATIONS if kind != "DELETE"]
        assert cells.split(" | ") == [*figures, f"{dollars_a_day(expected):.2f}"]
