"""An upload that ends at any of its boundaries: the commit before it stands, the next one is whole."""

from collections.abc import Callable

import pytest
from kafka_kit import ChangelogJob, Committed

from statekeep.fault_points import KAFKA_FAULT_POINTS, fault_handler

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


class OnPurposeError(Exception):
    """What strikes."""


def failing_at(point: str) -> Callable[[str], None]:
    def strike(reached: str) -> None:
        if reached == point:
            raise OnPurposeError

    return strike


async def with_a_tail(job: ChangelogJob) -> Committed:
    """Return a commit that an aborted attempt has written behind."""
    manager = await job.manager()
    base = await job.commit(manager, {b"a": b"1", b"b": b"1"})
    await job.upload(manager, job.seal({b"a": b"void", b"c": b"void"}))
    await manager.close()
    job.rewind(base)
    return base


@pytest.mark.asyncio
async def test_an_upload_reaches_every_boundary_in_order(job: ChangelogJob) -> None:
    await with_a_tail(job)
    manager, version = await job.manager(), job.seal({b"b": b"2"})
    reached: list[str] = []
    with fault_handler(reached.append):
        await job.upload(manager, version)
    assert reached == [*KAFKA_FAULT_POINTS]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_new", [True, False], ids=["another manager", "the same manager"])
@pytest.mark.parametrize("point", KAFKA_FAULT_POINTS)
async def test_an_upload_that_ends_at_a_boundary_harms_no_commit(
    job: ChangelogJob, point: str, *, is_new: bool
) -> None:
    base = await with_a_tail(job)
    manager = await job.manager()
    with fault_handler(failing_at(point)), pytest.raises(OnPurposeError):
        await job.upload(manager, job.seal({b"a": b"2", b"b": None, b"d": b"2"}))
    assert await job.restore(base.checkpoint) == base.content
    job.rewind(base)
    commit = await job.commit(await job.manager() if is_new else manager, {b"e": b"3"})
    assert await job.restore(commit.checkpoint) == {b"a": b"1", b"b": b"1", b"e": b"3"}
    assert await job.restore(base.checkpoint) == base.content
