"""A log that is reset while somebody is about to take it over."""

import pytest
from log_kit import commit_record, driver_on, log_on, new_blobs, view_of
from typing_extensions import override

from statekeep.backends.blob.job_log import BlobJobLog
from statekeep.checkpoint.log_guest import LogGuest
from statekeep.checkpoint.log_reset import LogRemains, reset_log
from statekeep.checkpoint.log_writer import LogWriter
from statekeep.errors import ConfigError

pytestmark = pytest.mark.asyncio


async def test_a_start_that_has_read_the_log_already_forgets_what_a_reset_drops() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    await driver.append(commit_record(1))
    starting = LogWriter(log_on(blobs))
    await starting.open()

    epoch, remains = await reset_log(log_on(blobs), "reset")
    await starting.take_over("starting")

    assert (epoch, remains.commits) == (2, 1)
    assert starting.view.last_commit is None
    assert await view_of(blobs) == starting.view


class PinnedMeanwhile(BlobJobLog):
    """A log in which somebody pins a commit just before the first append from here."""

    commit = 1

    @override
    async def append(self, position: int, data: bytes) -> None:
        pinned, self.commit = self.commit, -1
        if pinned >= 0:
            await LogGuest(BlobJobLog(self._blobs, "job")).pin("keep", pinned)
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
