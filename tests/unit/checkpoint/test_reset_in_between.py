"""A log that is reset while somebody is about to take it over."""

import pytest
from log_kit import commit_record, driver_on, log_on, new_blobs, view_of

from statekeep.checkpoint.log_reset import reset_log
from statekeep.checkpoint.log_writer import LogWriter

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
