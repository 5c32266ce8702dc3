"""Commits, aborted attempts, zombies, compaction and restarts in any order: every commit restores."""

import random

import pytest
from confluent_kafka import Producer
from kafka_kit import ChangelogJob, Committed

from statekeep.backends.base import TaskBackupManager
from statekeep.errors import CheckpointCorruptError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

STEPS = (
    *("commit", "commit", "void", "void", "zombie", "restart", "rewind", "lose", "empty"),
    "compact",
)
AT_ONCE = {
    "min_compaction_lag_ms": "0",
    "min_cleanable_dirty_ratio": "0.001",
    "segment_ms": "100",
}
LATER = {
    "min_compaction_lag_ms": "14400000",
    "min_cleanable_dirty_ratio": "0.5",
    "segment_ms": "604800000",
}


def changes(draw: random.Random) -> dict[bytes, bytes | None]:
    return {
        b"%d" % draw.randrange(30): draw.choice([None, draw.randbytes(draw.randrange(9))])
        for _ in range(draw.randrange(12))
    }


async def compact(job: ChangelogJob, manager: TaskBackupManager) -> None:
    """Let the broker drop every superseded record, and commit until it has."""
    job.configure_topic(**AT_ONCE)
    await job.commit(manager, {b"k": b"old"})
    await job.commit(manager, {b"k": b"new"})
    # Only a closed segment is compacted, and a write closes the one before.
    while (b"k", b"old") in job.records():
        await job.commit(manager, {b"l": b""})
    await job.commit(manager, {b"k": None})
    job.configure_topic(**LATER)


async def is_restored_or_refused(job: ChangelogJob, commit: Committed) -> bool:
    try:
        return await job.restore(commit.checkpoint) == commit.content
    except CheckpointCorruptError:
        return True


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(4))
async def test_every_commit_of_a_schedule_restores_its_own_content(
    job: ChangelogJob, seed: int
) -> None:
    draw = random.Random(seed)
    manager = await job.manager()
    compacted: list[Committed] = []
    commits = [await job.commit(manager, changes(draw))]
    for _ in range(20):
        match draw.choice(STEPS):
            case "commit":
                commits.append(await job.commit(manager, changes(draw)))
            case "void":
                await job.upload(manager, job.seal(changes(draw)))
                if draw.random() < 0.5:
                    job.rewind(commits[-1])
            case "zombie":
                end = draw.choice([Producer.commit_transaction, Producer.abort_transaction, None])
                job.write(job.zombie(), [*changes(draw).items(), (b"z", b"z")], end=end)
            case "restart":
                manager = await job.manager()
            case "rewind":
                job.rewind(draw.choice(commits))
            case "lose":
                job.base = None
            case "compact":
                await compact(job, manager)
                compacted += commits
                commits = [await job.commit(manager, changes(draw))]
            case _:
                commits.append(await job.commit(manager, {}))
    for commit in commits:
        assert await job.restore(commit.checkpoint) == commit.content
    for commit in compacted:
        assert await is_restored_or_refused(job, commit)
