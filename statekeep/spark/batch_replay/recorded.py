"""What the job log says of the batch that is to run again, and where its state comes from."""

from collections.abc import Mapping
from dataclasses import dataclass

from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, TaskBatch
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.inspection.job import InspectedJob, open_job
from statekeep.restore.plan import BadMarkers
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.processing import clock_of
from statekeep.spark.driver.replaying import RecordedBatch, recorded_batches
from statekeep.spark.operator.clock import BatchClock
from statekeep.spark.placement import router_of
from statekeep.spark.stage import QueryDefinition
from statekeep.spark.tasks import partition_of, task_name


@dataclass(frozen=True)
class RecordedRun:
    """One batch as it was recorded, and the newest state before it that is there."""

    config: Config
    batch: int
    commit: CommitRecord
    """What the replay begins with: the newest one that is of a batch before."""
    boundaries: Mapping[int, RecordedBatch]
    """From the batch of the commit to this one."""
    tasks: Mapping[int, Mapping[int, TaskBatch]]
    """``{batch: {task: what it did}}``, of the batches after the commit whose record is readable."""
    bad_markers: BadMarkers

    @property
    def batches(self) -> range:
        """Those that run, the last of them with a trace."""
        return range(self.commit.batch + 1, self.batch + 1)

    @property
    def partitions(self) -> int:
        """How many tasks the job had then."""
        return self.commit.identity.partitions

    def version_before(self, task: int) -> str | None:
        """Return the version that a task had before the batch; None where no record says it."""
        if self.batch - 1 == self.commit.batch:
            return self.commit.versions.get(task_name(task), "")
        done = self.tasks.get(self.batch - 1, {}).get(task)
        return None if done is None else done.version

    def clock(self, batch: int) -> BatchClock:
        """Return the time of one of the batches."""
        before = self.boundaries[batch - 1].offsets if batch > 0 else None
        return clock_of(batch, self.boundaries[batch].offsets, before)


async def find_recorded(query: QueryDefinition, batch: int) -> RecordedRun:
    """Read the job log, which is all that is done with it.

    Raises:
        ConfigError: There is no such job, or the batch is not recorded any more or not yet; the query has
            another grouping key, or another number of operators, than the job.
        CheckpointLocationError: The location is another query's, or boundaries are gone.
        CheckpointCorruptError: A record of the log cannot be read.
        RetriableError: A service may answer later.
    """
    async with open_job(query.config, SystemClock()) as job:
        return recorded_run(job, query, batch)


def recorded_run(job: InspectedJob, query: QueryDefinition, batch: int) -> RecordedRun:
    """As `find_recorded`, of a job that is open."""
    view = job.view
    job.find_commit()  # a job without any says so
    _check_location(query.location, view.query_id)
    commit = commit_before(view, batch)
    _check_operator(query, commit)
    records = {b: r for b, r in view.batches.items() if commit.batch < b <= batch}
    return RecordedRun(
        config=query.config,
        batch=batch,
        commit=commit,
        boundaries=recorded_batches(view, query.location, commit.batch, batch),
        tasks={
            number: {partition_of(task): done for task, done in record.tasks.items()}
            for number, record in records.items()
        },
        bad_markers=tuple(view.bad_markers),
    )


def commit_before(view: LogView, batch: int) -> CommitRecord:
    """Return the newest commit that a recovery could start from, of a batch before this one.

    Raises:
        ConfigError: There is none, or the batch has no record.
    """
    commits = view.comparable_commits
    found = [commit for commit in commits if commit.batch < batch]
    if batch in view.batches and found:
        return found[-1]
    oldest = commits[0].batch if commits else -1
    known = sorted(number for number in view.batches if number > oldest)
    shown = f"{known[0]}..{known[-1]}" if known else "none"
    raise ConfigError(
        f"the batch cannot run again: batch={batch} recorded={shown}",
        hint="a batch is recorded from its end until the commit before it is released; "
        "checkpoint.retain.commits says how many commits stay",
    )


def _check_location(location: CheckpointLocation, query_id: str | None) -> None:
    found = location.query_id()
    if found is None or found != query_id:
        error = CheckpointLocationError(
            f"the checkpoint location is not that of the job's query: location={location.uri} "
            f"query_id={found} recorded={query_id}"
        )
        error.add_note("hint: give the location, and the settings, that the query has")
        raise error


def _check_operator(query: QueryDefinition, commit: CommitRecord) -> None:
    schemas = "; ".join(stage.operator.key_schema.simpleString() for stage in query.stages)
    was = commit.identity
    now = (router_of(len(query.stages)), schemas)
    if now != (was.router, was.key_schema):
        raise ConfigError(
            "the query is grouped by another key, or has other operators, than the job: "
            f"query={schemas} job={was.key_schema}",
            hint="give the query as it ran",
        )
