"""Commits, void attempts, zombies, rewinds and restarts in any order: every commit restores."""

import random

import pytest
from confluent_kafka import Producer
from kafka_kit import ChangelogJob

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

STEPS = ("commit", "commit", "void", "void", "zombie", "restart", "rewind", "lose", "empty")


def changes(draw: random.Random) -> dict[bytes, bytes | None]:
    return {
        b"%d" % draw.randrange(30): draw.choice([None, draw.randbytes(draw.randrange(9))])
        for _ in range(draw.randrange(12))
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(4))
async def test_every_commit_of_a_schedule_restores_its_own_content(
    job: ChangelogJob, seed: int
) -> None:
    draw = random.Random(seed)
    manager = await job.manager()
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
            case _:
                commits.append(await job.commit(manager, {}))
    for commit in commits:
        assert await job.restore(commit.checkpoint) == commit.content
