"""Commands that ask for logs which are not there, where such a log cannot be read (Kafka)."""

from collections.abc import Sequence

import pytest
from cli_kit import TASK, CommandLine

from statekeep.backends.blob.job_log import BlobJobLog
from statekeep.checkpoint.job_log import JobLog
from statekeep.errors import RetriableError

LOG = f"--task '{TASK}'"


@pytest.fixture(autouse=True)
def no_log_is_read_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log without a record be read only by whoever has probed its place, which makes it."""
    read, probe = BlobJobLog.read, BlobJobLog.probe
    made: set[JobLog] = set()

    async def read_what_is_there(self: BlobJobLog, start: int) -> Sequence[tuple[int, bytes]]:
        if self not in made and not await read(self, 0):
            raise RetriableError("topic is gone, or not every node knows of it yet")
        return await read(self, start)

    async def is_there(self: BlobJobLog) -> bool:
        return bool(await read(self, 0))

    async def make(self: BlobJobLog) -> None:
        made.add(self)
        await probe(self)

    monkeypatch.setattr(BlobJobLog, "read", read_what_is_there)
    monkeypatch.setattr(BlobJobLog, "is_there", is_there)
    monkeypatch.setattr(BlobJobLog, "probe", make)


def test_a_log_moves_though_the_next_task_has_none(statekeep: CommandLine) -> None:
    assert statekeep(f"migrate-log --to far {LOG} --yes").status == 0


def test_a_job_is_reset_though_another_backend_has_no_log_of_it(statekeep: CommandLine) -> None:
    assert statekeep(f"reset {LOG} --yes").status == 0


def test_a_savepoint_becomes_a_job_that_has_no_log_yet(statekeep: CommandLine) -> None:
    current = statekeep(f"checkpoints show {LOG} --json").json["commit"]
    assert statekeep(f"savepoint restore {current} --as orders-2 {LOG}").status == 0
