"""A log that is reset while a driver is about to take it over."""

import msgspec
import pytest
from log_kit import commit_record, driver_on, log_on, new_blobs, view_of
from typing_extensions import override

from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.log_reset import LogRemains, read_remains, reset_log
from statekeep.checkpoint.log_session import LogSession
from statekeep.errors import CheckpointCorruptError, ConfigError, RetriableError

pytestmark = pytest.mark.asyncio


async def test_a_start_that_has_read_the_log_already_forgets_what_a_reset_drops() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    await driver.append(commit_record(1))
    starting = LogSession(log_on(blobs))
    await starting.open()

    epoch, remains = await reset_log(log_on(blobs), "reset")
    await starting.take_over("starting")

    assert (epoch, remains.commits) == (2, 1)
    assert starting.view.last_commit is None
    assert await view_of(blobs) == starting.view


async def test_a_reset_passes_over_records_that_are_lost_and_over_their_epochs() -> None:
    blobs = new_blobs()
    for number in range(3):
        driver = await driver_on(blobs)
        await driver.append(commit_record(number))
    records = await log_on(blobs).read(0)
    lost = [p for p, data in records if b'"epoch":2' in data]
    for position in lost:
        await blobs.delete(f"job/log/{position:020d}.json")
    with pytest.raises(CheckpointCorruptError):
        await log_on(blobs).read(0)

    epoch, remains = await reset_log(log_on(blobs), "reset")

    assert (remains.damaged, remains.commits) == (len(lost), 2)
    assert epoch > 3
    assert (await view_of(blobs)).last_commit is None


class PinnedMeanwhile(BlobJobLog):
    """A log in which another process pins a commit just before the first append from here."""

    commit = 1

    @override
    async def append(self, position: int, data: bytes) -> None:
        pinned, self.commit = self.commit, -1
        if pinned >= 0:
            await LogSession(BlobJobLog(self._blobs, "job")).pin("keep", pinned)
        await super().append(position, data)


async def test_a_pin_that_comes_in_between_is_seen_before_anything_is_dropped() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    await driver.append(commit_record(1))
    seen: list[set[str]] = []

    def check(remains: LogRemains) -> None:
        seen.append(set(remains.pins))
        if remains.pins:
            raise ConfigError("commits are kept under names")

    with pytest.raises(ConfigError, match="kept under names"):
        await reset_log(PinnedMeanwhile(blobs, "job"), "reset", check=check)

    assert seen == [set(), {"keep"}]
    assert (await view_of(blobs)).pins == {"keep": 1}


async def test_a_log_forgets_what_it_says_only_once_the_backups_are_deleted() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    await driver.append(commit_record(1))
    await LogSession(log_on(blobs)).pin("keep", 1)

    async def fail(_epoch: int, _remains: LogRemains) -> None:
        raise RetriableError("no answer")

    with pytest.raises(RetriableError):
        await reset_log(log_on(blobs), "reset", delete=fail)
    assert (await view_of(blobs)).last_commit is None

    deleted: list[tuple[int, set[str]]] = []

    async def delete(epoch: int, remains: LogRemains) -> None:
        deleted.append((epoch, set(remains.identities)))

    epoch, remains = await reset_log(log_on(blobs), "reset", delete=delete)
    assert deleted == [(epoch, {"u"})]
    assert (remains.commits, remains.pins) == (0, set())
    assert (await read_remains(log_on(blobs))).identities == {}


async def test_a_log_names_the_jobs_that_tools_began_to_make_in_it() -> None:
    blobs = new_blobs()
    log = await LogSession.of_tool(log_on(blobs), "first")
    identity = commit_record(1).identity
    await log.begin_attempt(7, CheckpointId(1, 1), {}, ["Partition 0", "Partition 1"], identity)
    await LogSession.of_tool(log_on(blobs), "second")
    remains = await read_remains(log_on(blobs))
    assert remains.identities == {"u": identity}
    assert remains.tasks == {"u": {"Partition 0", "Partition 1"}}


async def test_a_log_names_the_tasks_of_attempts_that_came_to_nothing() -> None:
    """A new Spark job: its first commit has no tasks yet, its attempts do not say whose they are."""
    blobs = new_blobs()
    first = msgspec.structs.replace(commit_record(1), checkpoints={}, versions={})
    await (await driver_on(blobs)).append(first)
    log = await LogSession.of_tool(log_on(blobs), "driver")
    tasks = ["Partition 0", "Partition 1"]
    await log.begin_attempt(7, CheckpointId(1, 1), dict.fromkeys(tasks, "7_0a"), ["Partition 1"])
    assert (await read_remains(log_on(blobs))).tasks == {"u": {*tasks}}


async def test_what_comes_after_a_reset_is_not_the_job_before() -> None:
    blobs = new_blobs()
    await (await driver_on(blobs)).append(commit_record(1))

    async def fail(_epoch: int, _remains: LogRemains) -> None:
        raise RetriableError("no answer")

    with pytest.raises(RetriableError):
        await reset_log(log_on(blobs), "reset", delete=fail)
    before = (await read_remains(log_on(blobs))).tasks
    log = await LogSession.of_tool(log_on(blobs), "tool")
    other = msgspec.structs.replace(commit_record(1).identity, job_uid="v")
    await log.begin_attempt(0, CheckpointId(1, 1), {}, ["Partition 9"], other)
    assert (await read_remains(log_on(blobs))).tasks == {**before, "v": {"Partition 9"}}


async def test_a_log_names_the_stores_that_a_job_had_and_has() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    for stores in (["kept", "removed"], ["added", "kept"]):
        commit = commit_record(1)
        identity = msgspec.structs.replace(commit.identity, stores={"main": stores})
        await driver.append(msgspec.structs.replace(commit, identity=identity))
    identity = (await read_remains(log_on(blobs))).identities["u"]
    assert identity.stores == {"main": ["added", "kept", "removed"]}
