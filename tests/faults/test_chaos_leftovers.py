"""The crash harness sees what a job on Spark has left on its host."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.spark.leftovers import leftovers, socket_of
from chaos.spark.places import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """What a job leaves that has ended well."""
    for name in ("main/Partition_0/4_ab/state", "container-app-1-0"):
        (tmp_path / "local" / "tally-1" / name).mkdir(parents=True)
    for name in ("container.log", "container.log.1", "ended-1"):
        (sidecar_of(Places(tmp_path)) / name).touch()
    (tmp_path / "checkpoint").mkdir()
    return Places(tmp_path)


def sidecar_of(places: Places) -> Path:
    return places.local / "tally-1" / "container-app-1-0"


def leave_a_work_directory(places: Places) -> Path:
    left = places.local / "tally-1" / "main" / "Partition_0" / "work-7"
    left.mkdir()
    return left


def leave_a_shadow(places: Places) -> Path:
    left = places.root / "checkpoint-statekeep-shadow-3-0123"
    left.mkdir()
    return left


def leave_an_outbox(places: Places) -> Path:
    left = sidecar_of(places) / "outbox"
    left.mkdir()
    return left


def leave_a_socket(places: Places) -> Path:
    left = socket_of(sidecar_of(places))
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    return left


def test_versions_and_logs_may_stay(places: Places) -> None:
    assert leftovers(places, has_killed=False) == []


@pytest.mark.parametrize(
    "leave", [leave_a_work_directory, leave_a_shadow, leave_an_outbox, leave_a_socket]
)
@pytest.mark.parametrize("has_killed", [False, True])
def test_nothing_else_may_stay(
    places: Places,
    leave: Callable[[Places], Path],
    has_killed: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    left = leave(places)
    try:
        assert leftovers(places, has_killed=has_killed) == [left]
    finally:
        if left.suffix == ".sock":
            left.unlink()


def test_the_place_of_a_sidecar_that_was_killed_is_left_to_the_next_application(
    places: Places,
) -> None:
    lock = sidecar_of(places) / "lock"
    lock.touch()
    outbox = leave_an_outbox(places)
    assert leftovers(places, has_killed=True) == []
    assert leftovers(places, has_killed=False) == [lock, outbox]


def test_a_submission_that_failed_is_left_to_the_next_application(places: Places) -> None:
    outbox = leave_an_outbox(places)
    (outbox / "000000000001-000000000001-00000003.json").touch()
    assert leftovers(places, has_killed=False) == []
    (places.local / "tally-1" / "container-app-2-0").mkdir()
    assert leftovers(places, has_killed=False) == [outbox]
