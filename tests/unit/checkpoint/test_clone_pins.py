"""Pins that clones hold: only the clone gives its commit back."""

import pytest
from log_kit import (
    LosingBlobs,
    commit_record,
    driver_on,
    log_on,
    new_blobs,
    stamped,
    view_of,
)
from typing_extensions import override

from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.checkpoint.log_reset import LogRemains, read_remains, reset_log
from statekeep.checkpoint.log_session import LogSession, require_no_clones
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import PinRecord, ReleaseRecord, UnpinRecord
from statekeep.errors import ConfigError, RetriableError

NAME = "clone:copy:1"
pytestmark = pytest.mark.asyncio


async def test_a_clone_alone_drops_its_pin() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    first = await driver.append(commit_record(1))
    await driver.append(commit_record(2))
    await LogSession(log_on(blobs)).pin(NAME, first, clone="copy")
    for clone in ("", "other"):
        with pytest.raises(
            ConfigError, match="a clone uses the backups of the commit: clones=copy"
        ):
            await LogSession(log_on(blobs)).unpin(NAME, clone=clone)
        with pytest.raises(
            ConfigError, match="a clone uses the backups of the commit: clones=copy"
        ):
            await driver.append(UnpinRecord(name=NAME, clone=clone))
    with pytest.raises(RetriableError, match="was pinned meanwhile"):
        await driver.append(ReleaseRecord(positions=[first]))
    assert (await view_of(blobs)).clones == {NAME: "copy"}
    await LogSession(log_on(blobs)).unpin(NAME, clone="copy")
    view = await view_of(blobs)
    assert (view.pins, view.clones) == ({}, {})
    await driver.poll()
    await driver.append(ReleaseRecord(positions=[first]))


async def test_a_drop_whose_answer_was_lost_may_be_repeated() -> None:
    blobs = new_blobs()
    first = await (await driver_on(blobs)).append(commit_record(1))
    await LogSession(log_on(blobs)).pin(NAME, first, clone="copy")
    losing = LosingBlobs(blobs)
    pin_writer = LogSession(log_on(losing))
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await pin_writer.unpin(NAME, clone="copy")
    await pin_writer.unpin(NAME, clone="copy")
    assert (await view_of(blobs)).pins == {}


async def test_a_record_that_contradicts_a_pin_of_a_clone_has_no_effect() -> None:
    view = LogView()
    view.fold(0, stamped(commit_record(1), 1))
    view.fold(1, PinRecord(epoch=1, nonce="a", name=NAME, position=0, clone="copy"))
    view.fold(2, UnpinRecord(epoch=1, nonce="b", name=NAME))
    view.fold(3, PinRecord(epoch=1, nonce="c", name=NAME, position=0, expires_ms=1))
    assert (view.pins, view.clones, view.pin_expiries) == ({NAME: 0}, {NAME: "copy"}, {})
    view.fold(4, UnpinRecord(epoch=1, nonce="d", name=NAME, clone="copy"))
    assert (view.pins, view.clones) == ({}, {})


class ClonedMeanwhile(BlobJobLog):
    """A log in which a clone pins a commit just before the first append from here."""

    is_pinned = False

    @override
    async def append(self, position: int, data: bytes) -> None:
        if not self.is_pinned:
            self.is_pinned = True
            await LogSession(BlobJobLog(self._blobs, "job")).pin(NAME, 1, clone="copy")
        await super().append(position, data)


async def test_a_reset_sees_the_clone_that_comes_in_between() -> None:
    blobs = new_blobs()
    await (await driver_on(blobs)).append(commit_record(1))

    def check(remains: LogRemains) -> None:
        require_no_clones(remains.clones)

    with pytest.raises(ConfigError, match="clones=copy"):
        await reset_log(ClonedMeanwhile(blobs, "job"), "reset", check=check)
    assert (await view_of(blobs)).clones == {NAME: "copy"}
    assert (await read_remains(log_on(blobs))).clones == {NAME: "copy"}
    await LogSession(log_on(blobs)).unpin(NAME, clone="copy")
    assert (await read_remains(log_on(blobs))).clones == {}
