"""``--dry-run`` in a backend that creates what is missing as soon as it gets ready, as Kafka's does."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from cli_kit import INPUT, TASK, CommandLine, job_settings
from typing_extensions import override

from statekeep.backends.base import BackupContext, TaskBackupManager
from statekeep.backends.memory import MemoryBackendFactory, MemoryBackupManager, forget_place
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.load import load_dict
from statekeep.container.container import Container

LOG = f"--task '{TASK}'"
topics: Final[set[StoreName]] = set()
"""What the cluster has."""


class _TopicBackup(MemoryBackupManager):
    @override
    async def init(self) -> None:
        topics.update(self._context.stores)


class TopicFactory(MemoryBackendFactory):
    """Keeps state in memory; a task's backup creates a topic for each of its stores."""

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        return _TopicBackup(context, self.name, self._place, self._new_uid)


@pytest.fixture
def on_topics(statekeep: CommandLine, job: Path) -> Iterator[CommandLine]:
    """The command line of a job whose state is in topics too, which have been deleted since."""
    settings = job_settings(job) | {
        "job.name": "topics",
        "stores.counts.backup.factories": "near,far,topics",
        "backends.topics.factory": f"{__name__}:TopicFactory",
    }

    async def commit() -> None:
        async with Container(load_dict(settings)) as container:
            task = await container.start_task(TASK, ["counts"])
            for number in (b"1", b"2"):
                task.store("counts").put(b"key", number)
                await (await task.commit({INPUT: number.decode()}, force=True)).wait()

    asyncio.run(commit())
    lines = [f"{key}={value}" for key, value in settings.items()]
    statekeep.config.write_text("\n".join(lines), encoding="utf-8")
    released = statekeep(f"checkpoints list {LOG} --json").json[1]["commit"]
    assert statekeep(f"checkpoints remove {released} {LOG} --yes").status == 0
    topics.clear()
    yield statekeep
    forget_place("topics")


@pytest.mark.parametrize("line", ["gc", "reset"])
def test_a_dry_run_creates_nothing(on_topics: CommandLine, line: str) -> None:
    result = on_topics(f"{line} --dry-run {LOG} --json")
    told = {part["backend"]: part["names"] for part in result.json["leftovers"]}
    assert (result.status, told["topics"]) == (0, None)
    assert not topics


def test_a_reset_gets_the_backend_ready(on_topics: CommandLine) -> None:
    assert on_topics(f"reset {LOG} --yes").status == 0
    assert topics == {"counts"}
