"""Commands that ask for logs which are not there, where such a log cannot be read (Kafka)."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_kit import TASK, CommandLine

from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.checkpoint.job_log import JobLog
from statekeep.errors import RetriableError

LOG = f"--task '{TASK}'"


@pytest.fixture(autouse=True)
def no_log_is_read_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log without a record be read only after its place was probed, which makes it."""
    read, probe = BlobJobLog.read, BlobJobLog.probe
    made: set[JobLog] = set()

    async def read_what_is_there(
        self: BlobJobLog, start: int, *, limit: int | None = None
    ) -> Sequence[tuple[int, bytes]]:
        if self not in made and not await read(self, 0):
            raise RetriableError("topic is gone, or not every node knows of it yet")
        return await read(self, start, limit=limit)

    async def is_there(self: BlobJobLog) -> bool:
        return bool(await read(self, 0))

    async def make(self: BlobJobLog) -> None:
        made.add(self)
        await probe(self)

    monkeypatch.setattr(BlobJobLog, "read", read_what_is_there)
    monkeypatch.setattr(BlobJobLog, "is_there", is_there)
    monkeypatch.setattr(BlobJobLog, "probe", make)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("checkpoints list", "the job has no log here: job=orders"),
        ("verify", "the job has no log here: job=orders"),
        ("gc --dry-run", "the job has no log here: job=orders"),
        ("savepoint create v1 --yes", "the job has no log here: job=orders"),
        ("reset --yes", "there is no log to reset"),
        ("migrate-log --to far --yes", "there is no log to move"),
    ],
)
@pytest.mark.parametrize("wrong", ["--set job.id=2", "--task 'Partition 7'"], ids=["job", "task"])
def test_a_job_or_task_that_is_not_there_is_reported_at_once(
    statekeep: CommandLine, job: Path, line: str, complaint: str, wrong: str
) -> None:
    task = "" if "--task" in wrong else LOG
    before = sorted(job.rglob("*"))
    result = statekeep(f"{line} {task} {wrong}")
    assert (result.status, complaint in result.err) == (2, True)
    assert "hint: check job.name" in result.err
    assert sorted(job.rglob("*")) == before


def test_a_log_moves_though_the_next_task_has_none(statekeep: CommandLine) -> None:
    assert statekeep(f"migrate-log --to far {LOG} --yes").status == 0


def test_a_job_is_reset_though_another_backend_has_no_log_of_it(statekeep: CommandLine) -> None:
    assert statekeep(f"reset {LOG} --yes").status == 0


def test_a_savepoint_becomes_a_job_that_has_no_log_yet(statekeep: CommandLine) -> None:
    current = statekeep(f"checkpoints show {LOG} --json").json["commit"]
    assert statekeep(f"savepoint restore {current} --as orders-2 {LOG}").status == 0
