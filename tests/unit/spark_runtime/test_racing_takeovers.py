"""Drivers that start while others live: what they check, and who they take the job to be."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from driver_kit import Driver
from log_kit import batch_record, commit_record
from outage_kit import cut_off

from statekeep.backends.storage.admin import StorageAdmin
from statekeep.checkpoint.records import JobIdentity
from statekeep.config.load import load_dict
from statekeep.errors import CheckpointLocationError, ConfigError, RetriableError, TaskFencedError


class FakeLocation:
    """The checkpoint location of query ``q``, which another driver may write to before each look."""

    uri = "file:///checkpoint"

    def __init__(self) -> None:
        self.newest_commit = -1
        self.on_look: Callable[[], None] = lambda: None

    def newest(self, log: str) -> int:
        assert log == "commits"
        self.on_look()
        return self.newest_commit

    def query_id(self) -> str:
        return "q"

    def check_newest(self) -> None:
        pass

    def names(self, directory: str) -> list[str]:
        assert directory == "state"  # of no operator of Spark's own
        return []

    def require(self, name: str) -> str:
        assert name == "metadata"
        return '{"id":"q"}'


class Drivers:
    """Drivers of one job, at one checkpoint location."""

    def __init__(self, root: Path) -> None:
        self.settings = {
            "job.name": "j",
            "stores.backup.factories": "blob",
            "blob.store.uri": f"file://{root}",
        }
        self.location = FakeLocation()
        self.opened: list[Driver] = []

    def open(self, tasks: int | None = 1) -> Driver:
        driver = Driver(load_dict(self.settings), self.location)
        self.opened.append(driver)
        driver.open(tasks)
        return driver

    def begin(self, *, batches: int) -> Driver:
        """Return a driver that has ended so many batches."""
        driver = self.open()
        driver.begin(driver.fence(identity("first")), "7-1")
        for batch in range(batches):
            self.end(driver, batch)
        return driver

    def end(self, driver: Driver, batch: int) -> None:
        driver.append(batch_record(batch))
        self.location.newest_commit = batch


def identity(uid: str) -> JobIdentity:
    return msgspec.structs.replace(commit_record(1, 0).identity, job_uid=uid)


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path)
    yield drivers
    for driver in drivers.opened:
        driver.close()


def test_an_older_driver_that_goes_on_meanwhile_prevents_no_start(
    drivers: Drivers,
) -> None:
    living = drivers.begin(batches=1)
    starting = drivers.open()
    batches = iter(range(1, 7))

    def end_two_batches() -> None:
        for batch in [next(batches, None), next(batches, None)]:
            if batch is not None:
                drivers.end(living, batch)

    drivers.location.on_look = end_two_batches
    starting.check_location()
    assert drivers.location.newest_commit == 6


def test_a_driver_that_its_backend_refuses_leaves_no_thread(
    drivers: Drivers, tmp_path: Path
) -> None:
    occupied = tmp_path / "a-file"
    occupied.touch()
    drivers.settings["blob.store.uri"] = f"file://{occupied}"
    before = set(threading.enumerate())
    with pytest.raises((ConfigError, RetriableError)):
        drivers.open()
    drivers.opened[0].close()
    assert set(threading.enumerate()) <= before


def test_a_first_driver_that_begins_meanwhile_prevents_no_start(drivers: Drivers) -> None:
    starting = drivers.open()
    drivers.begin(batches=1)
    starting.check_location()


def test_a_location_behind_its_log_is_refused_while_the_log_grows(drivers: Drivers) -> None:
    living = drivers.begin(batches=4)
    starting = drivers.open()
    batch = 3

    def go_on_elsewhere() -> None:
        nonlocal batch
        batch += 1
        living.append(batch_record(batch))

    drivers.location.newest_commit = 1
    drivers.location.on_look = go_on_elsewhere
    with pytest.raises(CheckpointLocationError, match="are of different times: commits=1"):
        starting.check_location()
    assert starting.epoch == 0
    living.append(batch_record(batch + 1))


def test_a_location_that_does_not_fit_is_refused_at_once_where_nothing_happens(
    drivers: Drivers,
) -> None:
    drivers.begin(batches=4)
    starting = drivers.open()
    drivers.location.newest_commit = 1
    looks: list[int] = []
    drivers.location.on_look = lambda: looks.append(1)
    with pytest.raises(CheckpointLocationError):
        starting.check_location()
    assert len(looks) == 1


def test_of_drivers_that_begin_a_job_at_once_the_last_takes_the_identity_of_the_first_commit(
    drivers: Drivers,
) -> None:
    first, second = drivers.open(), drivers.open()
    first.begin(first.fence(identity("of the first")), "7-1")
    assert second.fence(identity("of the second")).job_uid == "of the first"
    with pytest.raises(TaskFencedError):
        first.append(batch_record(0))


def test_a_driver_that_is_fenced_before_the_first_commit_does_not_write_it(
    drivers: Drivers,
) -> None:
    first, second = drivers.open(), drivers.open()
    own = first.fence(identity("of the first"))
    second.begin(second.fence(identity("of the second")), "7-1")
    with pytest.raises(TaskFencedError):
        first.begin(own, "7-2")


@pytest.fixture
def far(drivers: Drivers, tmp_path: Path) -> str:
    """The place of a second backend, which does not answer."""
    place = str(tmp_path / "far")
    cut_off(place)
    drivers.settings |= {
        "stores.backup.factories": "far,blob",
        "backends.far.factory": "outage_kit:OutageBackendFactory",
        "backends.far.uri": place,
        "job.log.backend": "blob",
    }
    return place


@pytest.mark.parametrize("tasks", [4, None], ids=["number given", "number in the log"])
def test_each_backend_is_checked_once_and_all_at_once(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int | None
) -> None:
    names = ["blob", "second", "third"]
    drivers.settings["stores.backup.factories"] = ",".join(names)
    for name in names[1:]:
        drivers.settings |= {
            f"backends.{name}.factory": "blob",
            f"backends.{name}.uri": f"file://{tmp_path / name}",
        }
    checked: list[str] = []
    met = asyncio.Barrier(2)
    validate = StorageAdmin.validate_resources

    async def noted(admin: StorageAdmin) -> None:
        checked.append(admin._backend)
        if admin._backend != "blob":
            await met.wait()  # would never return if the others came one after the other
        await validate(admin)

    monkeypatch.setattr(StorageAdmin, "validate_resources", noted)
    drivers.open(tasks)
    assert sorted(checked) == names


def test_a_driver_starts_while_an_optional_backend_is_away(
    drivers: Drivers, far: str, caplog: pytest.LogCaptureFixture
) -> None:
    drivers.settings["stores.backup.optional"] = "far"
    drivers.open()
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == [
        "optional backend does not answer, the start goes on without it: backend=far"
    ]


@pytest.mark.parametrize(
    "settings",
    [{}, {"stores.backup.optional": "far", "job.log.backend": "far"}],
    ids=["required", "holds the log"],
)
def test_a_driver_does_not_start_while_a_backend_that_it_needs_is_away(
    drivers: Drivers, far: str, settings: dict[str, str]
) -> None:
    drivers.settings |= settings
    with pytest.raises(RetriableError, match="backend=far"):
        drivers.open()


def test_a_run_that_was_followed_by_another_driver_learns_it_before_it_fences(
    drivers: Drivers,
) -> None:
    own_epoch = drivers.begin(batches=1).epoch
    again = drivers.open()
    again.check_followed(own_epoch)
    successor = drivers.open()
    successor.fence(identity("first"))
    with pytest.raises(TaskFencedError, match="own_epoch=1 newer_epoch=2"):
        again.check_followed(own_epoch)
    successor.append(batch_record(1))
