"""Repeated proof, while a job runs, that its newest commit can be restored."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from statekeep.backends.base import BlockingExecutor
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.records import CommitRecord
from statekeep.clock import Clock
from statekeep.config.load import load_dict, merge
from statekeep.config.model import Config
from statekeep.config.redact import redact_text
from statekeep.events import CommitVerified, Event, Report, RequestDone, VerifyFailed
from statekeep.inspection.job import InspectedJob, hung_calls_abandoned, open_job
from statekeep.inspection.verification import VerifiedCopy, holders_of, unheld, verify_copy
from statekeep.stores.temporary_directory import temporary_directory

logger = logging.getLogger(__name__)

_THREADS: Final = 2
"""Few: the uploads of the job come first."""


@dataclass(frozen=True, slots=True)
class ProvenCommit:
    """The newest commit of which every copy of a task was restored and found whole; for people."""

    time_ms: int
    position: int
    batch: int
    checkpoint_id: str
    task: str
    backends: Sequence[str]


def with_log_backend(config: Config, name: str) -> Config:
    """Return the settings of a running job, with the backend that its log is in."""
    return merge(config, load_dict({"job.log.backend": name}, "the job itself"))


class ContinuousProof:
    """Restores one task of the newest commit from each backend, into a directory that is thrown away.

    Which task is drawn anew each time, so that over time all of them are proven; one that was found
    damaged is taken again until it is whole. The commit is kept from being released meanwhile. Used on one
    event loop; what blocks has threads of its own.

    Attributes:
        last_verified: What the newest proof without a fault was of; None before the first.
        failing: What the newest proof found; "" if nothing.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        report: Report,
        rng: random.Random,
        scratch: Path | None = None,
        tasks_with_logs: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """Take what is needed; nothing is read yet.

        Args:
            config: Of the job, with the backend of its log.
            clock: For the interval.
            report: Gets how proofs end, and their requests.
            rng: Draws tasks.
            scratch: Where temporary directories are made; None: where the system has them.
            tasks_with_logs: Returns the tasks to draw from in plain Python, where each has a log of its
                own; None: the job has one log, as on Spark.
        """
        self._config = config
        self._clock = clock
        self._report = report
        self._rng = rng
        self._scratch = scratch
        self._tasks_with_logs = tasks_with_logs
        self._damaged: str | None = None
        """The task that the newest proof found damaged."""
        self.last_verified: ProvenCommit | None = None
        self.failing = ""

    async def run(self) -> None:
        """Prove a commit in each ``job.verify.interval.ms``, until cancelled.

        The first time comes at a random part of it: also a job that often starts again is proven.
        """
        interval_s = self._config.job.verify_interval_ms / 1000
        await self._clock.sleep(interval_s * self._rng.random())
        while True:
            try:
                await self.prove()
            except (
                Exception
            ) as exc:  # a backend of the user's may raise anything: the proof goes on
                own = asyncio.current_task()
                if own is not None and own.cancelling():  # what was cut off may raise its own error
                    raise asyncio.CancelledError from exc
                # No answer, or no room here: nothing is known of the backups.
                self.failing = redact_text(str(exc))
                logger.warning("the newest commit could not be verified: error=%s", exc)
            await self._clock.sleep(interval_s)

    async def prove(self) -> None:
        """Prove the newest commit now; nothing is done where it has no state yet.

        Raises:
            StateBackupError: It cannot be told: a service does not answer, or this machine has no room.
        """
        log_of = None
        if self._tasks_with_logs is not None:
            log_of = self._draw(self._tasks_with_logs())
            if log_of is None:
                return
        async with open_job(
            self._config, self._clock, task=log_of, threads=_THREADS, report=self._report_request
        ) as job:
            if job.view.last_commit is None:
                return
            position, commit = job.find_commit()
            drawn = self._draw([name for name, version in commit.versions.items() if version])
            if drawn is None:
                return
            task = TaskName(drawn)
            began_ns = self._clock.monotonic_ns()
            async with job.held(position):
                copies = await self._verify(job, commit, task)
        elapsed_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
        faults = [copy for copy in copies if copy.error is not None]
        self._damaged = task if any(copy.is_damaged for copy in faults) else None
        for copy in faults:
            self._report_fault(position, commit, copy)
        self.failing = "; ".join(f"{copy.task} in {copy.backend}: {copy.error}" for copy in faults)
        if not faults:
            self._report_success(position, commit, copies, elapsed_ms)

    def _draw(self, tasks: Collection[str]) -> str | None:
        """Return the task that was found damaged, else any; None where there is none."""
        if self._damaged in tasks:
            return self._damaged
        return self._rng.choice(sorted(tasks)) if tasks else None

    def _report_request(self, event: Event) -> None:
        """Report a request as one of the proof, which is no restore of the job."""
        if isinstance(event, RequestDone):
            self._report(replace(event, purpose="verify", task=""))

    async def _verify(
        self, job: InspectedJob, commit: CommitRecord, task: TaskName
    ) -> list[VerifiedCopy]:
        copies: list[VerifiedCopy] = []
        for backend in holders_of(job, commit, task):
            async with _scratch_directory(job.executor, self._scratch) as directory:
                with hung_calls_abandoned(job.executor):
                    copies.append(await verify_copy(job, commit, task, backend, directory))
        return copies or [unheld(commit, task)]

    def _report_fault(self, position: int, commit: CommitRecord, copy: VerifiedCopy) -> None:
        write = logger.error if copy.is_damaged else logger.warning
        write(
            "%s: commit=%d batch=%d task=%s backend=%s error=%s",
            "a copy of the newest commit cannot be restored"
            if copy.is_damaged
            else "a copy of the newest commit could not be verified now",
            position,
            commit.batch,
            copy.task,
            copy.backend,
            copy.error,
        )
        self._report(
            VerifyFailed(
                position,
                commit.batch,
                copy.task,
                backend=copy.backend or "",
                is_damaged=copy.is_damaged,
                error=copy.error or "",
            )
        )

    def _report_success(
        self,
        position: int,
        commit: CommitRecord,
        copies: Sequence[VerifiedCopy],
        elapsed_ms: int,
    ) -> None:
        task, backends = copies[0].task, [str(copy.backend) for copy in copies]
        size = sum(copy.bytes for copy in copies)
        now_ms = self._clock.time_ns() // 1_000_000
        self.last_verified = ProvenCommit(
            now_ms, position, commit.batch, commit.checkpoint_id, task, tuple(backends)
        )
        logger.info(
            "commit is verified: commit=%d batch=%d task=%s backends=%s bytes=%d elapsed_ms=%d",
            position,
            commit.batch,
            task,
            ",".join(backends),
            size,
            elapsed_ms,
        )
        self._report(CommitVerified(position, commit.batch, task, backends, size, elapsed_ms))


@asynccontextmanager
async def _scratch_directory(executor: BlockingExecutor, root: Path | None) -> AsyncGenerator[Path]:
    """Make a directory and remove it again; gigabytes of files are removed on a thread."""
    stack = ExitStack()
    directory = await executor.run(
        stack.enter_context, temporary_directory("statekeep-verify-", root)
    )
    try:
        yield directory
    finally:
        await executor.run(stack.close)
