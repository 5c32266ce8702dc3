"""A task that goes on from a checkpoint beside its log never begins empty."""

from pathlib import Path
from typing import cast

import msgspec
import pytest
from checkpoint_topic_kit import reader_of

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoint_manager import CheckpointForms, CheckpointManager
from statekeep.checkpoint.checkpoints import SystemStreamPartition, TaskName
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    CommitRecord,
    EpochRecord,
    JobIdentity,
    Record,
    ReleaseRecord,
)
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.checkpoint_copies import CheckpointCopies
from statekeep.container.container import Container
from statekeep.errors import CommitFailedError, RetriableError, TaskFencedError

TASK = TaskIdentity("job", "main", TaskName("Partition 0"))
INPUT = SystemStreamPartition("kafka", "clicks", 0)
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

    async def append(self, record: Record) -> None:
        assert isinstance(record, ReleaseRecord)
        self.released += record.positions


@pytest.mark.asyncio
async def test_the_empty_commit_before_an_adopted_one_is_released_by_whoever_comes_next() -> None:
    log = Log()
    manager = cast("CheckpointManager", object())  # not asked: there is a commit to go on from
    await CheckpointCopies(manager, TASK).adopt(
        cast("LogSession", log), EMPTY.identity, lambda: "uid"
    )
    assert log.released == [1]


def settings_of(root: Path, disk: str) -> Config:
    """A job whose checkpoints are copied to a topic; each container has a disk of its own."""
    return load_dict(
        {
            "job.name": "job",
            "job.logged.store.base.dir": str(root / disk),
            "stores.backup.factories": "kafka",
            "backends.kafka.factory": "checkpoint_topic_kit:TopicFactory",
            "backends.kafka.uri": (root / "place").as_uri(),
            "task.checkpoint.factory": "kafka",
        }
    )


async def commit_as(container: Container, offset: str) -> None:
    """Start the task and commit."""
    task = await container.start_task(TASK.task_name, ["s"])
    await (await task.commit({INPUT: offset}, force=True)).wait()


@pytest.mark.asyncio
async def test_a_fenced_container_copies_nothing_over_what_its_successor_has_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = LogSession.append

    async def commit_and_be_overtaken(log: LogSession, record: Record) -> int:
        position = await append(log, record)
        if isinstance(record, CommitRecord) and record.batch >= 0:
            monkeypatch.setattr(LogSession, "append", append)
            async with Container(settings_of(tmp_path, "successor")) as successor:
                await commit_as(successor, "2")
        return position

    async with Container(settings_of(tmp_path, "old")) as old:
        monkeypatch.setattr(LogSession, "append", commit_and_be_overtaken)
        with pytest.raises(TaskFencedError):
            await commit_as(old, "1")
    place = (tmp_path / "place").as_uri()
    found = await reader_of(place, "job", CheckpointForms()).read_last(TASK.task_name)
    assert found is not None
    assert found.input_offsets == {INPUT: "2"}


@pytest.mark.asyncio
async def test_a_copy_is_left_to_the_next_commit_where_nothing_says_who_owns_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def be_away(_: LogSession) -> None:
        raise RetriableError("away")

    async with Container(settings_of(tmp_path, "disk")) as container:
        monkeypatch.setattr(LogSession, "check_fence", be_away)
        with pytest.raises(CommitFailedError, match="step=checkpoint"):
            await commit_as(container, "1")
