"""A driver that takes a job over, without Spark: what a start does one after the other."""

from collections.abc import Collection
from typing import cast

from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState, Record
from statekeep.commit.gate import CommitGate
from statekeep.config.model import Config
from statekeep.events import report_nothing
from statekeep.spark.driver.commit_records import query_state
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.first_start import first_commit, with_query
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.opening import JobStorage, open_storage
from statekeep.spark.driver.takeover import Resumption, Takeover, resolved_identity
from statekeep.spark.worker.job_spec import SubmitPlan
from statekeep.testing.clock import FakeClock


def no_uploads(_: SubmitPlan) -> Collection[int]:
    """Find no task whose upload was abandoned."""
    return ()


class Driver:
    """Blocking, as the thread that starts a query sees it. Closed by the test."""

    def __init__(self, config: Config, location: object) -> None:
        self.config = config
        self.location = cast("CheckpointLocation", location)
        self.clock = FakeClock()
        self.thread = CommitThread("statekeep-commit", config.container, self.clock)
        self.storage: JobStorage | None = None
        self.commits: JobCommits | None = None
        self._is_closed = False

    @property
    def log(self) -> LogSession:
        assert self.storage is not None
        return self.storage.log

    @property
    def view(self) -> LogView:
        return self.log.view

    @property
    def epoch(self) -> int:
        return self.log.epoch

    @property
    def log_backend(self) -> str:
        assert self.storage is not None
        return self.storage.log_backend

    @property
    def retained_batches(self) -> list[int]:
        return [commit.batch for commit in self.view.comparable_commits]

    @property
    def takeover(self) -> Takeover:
        assert self.storage is not None
        return Takeover(
            self.storage.log,
            self.storage.checkpoints,
            self.location,
            self.thread,
            start_from=self.config.job.start_from_checkpoint,
            clock=self.clock,
        )

    def open(self, partitions: int | None) -> CommitRecord | None:
        self.storage = self.thread.run(
            open_storage(
                self.config,
                self.location,
                partitions,
                executor=self.thread.executor,
                clock=self.clock,
                report=report_nothing,
            )
        )
        return self.view.last_commit

    def check_location(self) -> None:
        """Check it for a job with the stores that it has."""
        same = JobIdentity(job_uid="u", job_name="j", partitions=1, stores=self.view.stores)
        self.takeover.check_location(same)

    def check_followed(self, own_epoch: int) -> None:
        self.takeover.check_followed(own_epoch)

    def fence(self, identity: JobIdentity) -> JobIdentity:
        self.takeover.fence()
        return resolved_identity(self.view.last_commit, identity)

    def take_over(self, identity: JobIdentity) -> Resumption | None:
        assert self.storage is not None
        self.commits = self._commits(self.storage, identity)
        return self.takeover.take_over(self.commits, identity, no_uploads)

    def begin(self, identity: JobIdentity, checkpoint_id: str) -> None:
        """Write the commit with which a query begins."""
        first = first_commit(self.view.last_commit, identity, checkpoint_id, self.epoch)
        self.append(with_query(first, self.location))

    def append(self, record: Record) -> None:
        self.thread.run(self.log.append(record))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self.storage is not None:
                self.thread.run(self.storage.close())
            self.thread.close()

    def _commits(self, storage: JobStorage, identity: JobIdentity) -> JobCommits:
        async def read_query_state(batch: int) -> QueryState:
            return query_state(self.location, storage.log.view.last_commit, batch)

        return JobCommits(
            log=storage.log,
            checkpoints=storage.checkpoints,
            gate=CommitGate(self.config.task),
            clock=self.clock,
            identity=identity,
            query_state=read_query_state,
            on_commit=lambda _: None,
        )
