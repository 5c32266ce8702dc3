"""A task that goes on from a checkpoint beside its log never begins empty."""

from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoint_manager import CheckpointManager
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, EpochRecord, JobIdentity, Record
from statekeep.container.checkpoint_copies import CheckpointCopies
from statekeep.container.task_log import TaskLog

TASK = TaskIdentity("job", "main", TaskName("Partition 0"))
EMPTY = CommitRecord(
    epoch=1,
    nonce="c1",
    attempt_epoch=0,
    attempt=0,
    batch=-1,
    checkpoint_id="1-1",
    identity=JobIdentity(job_uid="u", job_name="job", partitions=1),
)
ADOPTED = msgspec.structs.replace(EMPTY, nonce="c2", attempt_epoch=1, attempt=1, batch=0)


class Log:
    """What `adopt` asks of a log whose owner died between commit and release."""

    def __init__(self) -> None:
        self.view = LogView()
        records: list[Record] = [EpochRecord(epoch=1, nonce="e", owner="here"), EMPTY, ADOPTED]
        for position, record in enumerate(records):
            self.view.fold(position, record)
        self.released: list[int] = []

    async def release(self, positions: Sequence[int]) -> None:
        self.released += positions


@pytest.mark.asyncio
async def test_the_empty_commit_before_an_adopted_one_is_released_by_whoever_comes_next() -> None:
    log = Log()
    manager = cast("CheckpointManager", object())  # not asked: there is a commit to go on from
    await CheckpointCopies(manager, TASK).adopt(cast("TaskLog", log), lambda: "uid")
    assert log.released == [1]
