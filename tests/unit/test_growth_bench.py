"""What the growth bench measures: a job that commits on and on takes no more memory for it."""

import asyncio
import xml.etree.ElementTree as ET
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from benchmarks.ageing import Ageing, AgeingJob, AgeingTask
from benchmarks.curves import Curve, draw
from benchmarks.growth import Mark, grow, slopes

DAY_MS = 86_400_000


def measured(kind: type[Ageing], *given: object, commits: int) -> list[Mark]:
    """Measure in a process of its own: all objects of one are counted, and this one has many."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measured, kind, given, commits).result()


def _measured(kind: type[Ageing], given: tuple[object, ...], commits: int) -> list[Mark]:
    return asyncio.run(grow(kind(*given), commits))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_commits_kept_by_age_stay_out_of_memory() -> None:
    marks = measured(AgeingJob, 16, "plain", DAY_MS, commits=80)
    # A commit of 16 tasks takes 10 kB in full, and less than 1 kB as a line.
    assert slopes(marks[3:])["memory_kb"] < 1_000
    assert marks[-1].log_records > marks[0].log_records
    assert marks[-1].get <= marks[0].get + 1


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_clean_up_that_fails_after_each_commit_stays_out_of_memory() -> None:
    marks = measured(AgeingJob, 8, "failing", 0, commits=80)
    # Each commit leaves a line, and names that were listed; no error for each of thousands of blobs.
    assert slopes(marks[1:])["memory_kb"] < 10_000
    assert marks[-1].commit_ms < 4 * marks[2].commit_ms
    assert marks[-1].blobs > marks[0].blobs
    assert marks[-1].delete == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "names"),
    # What cannot be deleted because of damage is listed again each time.
    [("aborts", ["get", "list", "names_listed", "log_records"]), ("damage", ["get", "list"])],
    ids=["aborts", "damage"],
)
def test_aborted_attempts_and_damage_behind_a_pin_cost_no_more_requests_with_age(
    scenario: str, names: list[str]
) -> None:
    marks = measured(AgeingJob, 2, scenario, 0, commits=80)
    for name in names:
        assert getattr(marks[-1], name) <= getattr(marks[2], name) * 1.1 + 1, name


def test_what_a_job_holds_and_asks_for_does_not_grow() -> None:
    marks = measured(AgeingJob, 2, "plain", 0, commits=80)
    for name in ("log_records", "blobs", "put", "get", "list", "start_requests"):
        assert getattr(marks[-1], name) == pytest.approx(getattr(marks[3], name), rel=0.1), name


@pytest.mark.slow
def test_a_pin_keeps_its_commit_and_not_the_log() -> None:
    marks = measured(AgeingJob, 1, "pin", 0, commits=400)
    assert max(mark.log_records for mark in marks) < 1_100
    assert max(mark.start_requests for mark in marks) < 1_200


def test_a_task_in_plain_python_is_measured_with_its_indexes() -> None:
    marks = measured(AgeingTask, commits=16)
    assert marks[-1].index_kb > 0
    assert marks[-1].start_requests > 0


def test_curves_are_drawn_from_zero() -> None:
    drawn = ET.fromstring(draw([Curve("a < b", [(0, 1), (10, 1)]), Curve("none", [])]))  # noqa: S314 - our own
    lines = [e.get("points") for e in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert lines == ["30.0,30.0 245.0,30.0", ""]
