"""Where a new driver goes on, and what it makes of the attempt that its predecessor left (R5)."""

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException

from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import NO_QUERY, AttemptRecord, CommitRecord, JobIdentity
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import (
    CheckpointCorruptError,
    CheckpointLocationError,
    CommitFailedError,
    ConfigError,
    StateBackupError,
    TaskFencedError,
    UnknownFormatError,
)
from statekeep.events import CommitSummary
from statekeep.fault_points import fault_point
from statekeep.spark.driver.commit_records import bases_of, encoded_bases
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.first_start import KEY, adopt, first_commit, is_new_query, to_adopt
from statekeep.spark.driver.job_commits import EntriesLackError, GatheredTasks, JobCommits, gather
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.variable_stores import lasting_stores
from statekeep.spark.worker.job_spec import SubmitPlan

logger = logging.getLogger(__name__)

_HINT: Final = (
    "go back to the former value, or start anew under another job.name with another checkpoint"
    " location"
)
_HINTS: Final = {
    "router": "go back to the former number of stateful operators, or start anew under another job.name"
    " with another checkpoint location",
}
_CALLED: Final = {"key_schema": "grouping key"}


def new_identity(
    config: Config, partitions: int, router: str, key_schema: str, processors: Sequence[str] = ()
) -> JobIdentity:
    """Return the identity of a job as it is configured now, with a fresh ``job_uid``."""
    return JobIdentity(
        job_uid=uuid.uuid4().hex,
        job_name=config.job.name,
        partitions=partitions,
        router=router,
        key_schema=key_schema,
        processors=list(processors) if len(processors) > 1 else [],
        stores={MAIN_OPERATOR: list(lasting_stores(config))},
    )


def resolved_identity(
    commit: CommitRecord | None, expected: JobIdentity, given_up: Collection[str] = ()
) -> JobIdentity:
    """Return the identity of the job: that of its newest commit, if there is one by now.

    The job may have more stores than that commit, and may be about to get another number of tasks.

    Args:
        commit: The current commit.
        expected: The job as it is configured now. Each driver of a new job draws a ``job_uid``; the
            one in the first commit stays.
        given_up: Stores whose state is not wanted any more, as settings say.

    Raises:
        ConfigError: Something drifted that must not: names both values. Or a store has the name of one
            that was given up.
    """
    if commit is None:
        return expected
    found = commit.identity
    for name in ("job_name", "router", "key_schema"):
        before, now = getattr(found, name), getattr(expected, name)
        if before != now:
            raise ConfigError(
                f"the job cannot go on with another {_CALLED.get(name, name)}:"
                f" before={before!r} now={now!r}",
                hint=_HINTS.get(name, _HINT),
            )
    _require_same_order(found.processors, expected.processors)
    before, now = ({s for of in job.stores.values() for s in of} for job in (found, expected))
    lost = sorted(before - now - set(given_up))
    if lost:
        raise ConfigError(
            f"the job would lose the state of a store: store={lost[0]} stores={','.join(sorted(now))}",
            key=f"stores.{lost[0]}",
            hint=f"name it again by state.variables.<variable>.store={lost[0]}, with its backends in"
            f" stores.{lost[0]}.backup.factories; to drop its state set that and"
            f" stores.{lost[0]}.restore.factories to an empty value",
        )
    again = sorted(now.intersection(found.retired_stores))
    if again:
        raise ConfigError(
            f"the job has given up a store of this name: store={again[0]}",
            key=f"stores.{again[0]}.backup.factories",
            hint="choose another name: the disk of a host may still have what the old one held",
        )
    retired = sorted({*found.retired_stores, *(before - now)})
    return msgspec.structs.replace(
        found, processors=expected.processors, stores=expected.stores, retired_stores=retired
    )


def _require_same_order(before: Sequence[str], now: Sequence[str]) -> None:
    """Make sure that operators were not swapped: their keys and variables may be called the same.

    Raises:
        ConfigError: They were.
    """
    is_distinct = len(set(now)) == len(now)
    if is_distinct and list(before) != list(now) and sorted(before) == sorted(now):
        raise ConfigError(
            "the stateful operators are in another order:"
            f" before={','.join(before)} now={','.join(now)}",
            hint="restore their former order, as each has the state of its position; or start anew"
            " under another job.name with another checkpoint location",
        )


_ROLL_FORWARD_NS: Final = 10_000_000_000
"""How long a new driver waits for the uploads of the attempt that its predecessor left open."""

_LOOKS: Final = 8
"""At a checkpoint location beside a log that grows: a few batches are between two of them."""


FindAbandoned = Callable[[SubmitPlan], Awaitable[Collection[int]]]
"""Returns the partitions of an attempt whose version no sidecar of any executor's host has to upload."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a job goes on."""

    query_id: str
    committed: int
    """C"""
    head: int
    """H: every batch up to it counts."""
    is_new_query: bool = False
    """The state is there, and no batch of the query was ever processed."""


class Takeover:
    """Makes a driver the owner of its job. Blocking, on the thread that starts the query.

    Order of calls: `check_location`, `check_followed` where it applies, `fence`, `take_over`.
    """

    def __init__(
        self,
        log: LogSession,
        checkpoints: CheckpointStore,
        location: CheckpointLocation,
        thread: CommitThread,
        *,
        start_from: str | None,
        clock: Clock,
    ) -> None:
        """Take what is needed.

        Args:
            log: Of the job; open.
            checkpoints: Where the sidecars put their entries.
            location: The query's checkpoint location.
            thread: Runs what the log is asked.
            start_from: The checkpoint id from which a new query is to go on, if the settings name one.
            clock: For waits.
        """
        self._log = log
        self._checkpoints = checkpoints
        self._location = location
        self._thread = thread
        self._start_from = start_from
        self._clock = clock

    def check_location(self, identity: JobIdentity) -> None:
        """Refuse a checkpoint location that is not the job's, and other stores than it may have now.

        Before anyone is fenced.

        An older driver that lives goes on in both, and they are not read at one moment: what does
        not fit is looked at again if the log has grown meanwhile.

        Raises:
            CheckpointLocationError: It belongs to another job or query, is older, or is gone.
            ConfigError: The job cannot go on from the checkpoint that the settings name, or cannot
                get other stores now.
        """
        for _ in range(_LOOKS - 1):
            seen = self._log.view.next_position
            try:
                self._find_checked(identity)
            except CheckpointLocationError as exc:
                if self._thread.run(self._log.poll()).next_position == seen:
                    raise
                logger.info("an older driver still writes, the log is read again: error=%s", exc)
            else:
                return
        self._find_checked(identity)

    def check_followed(self, own_epoch: int) -> None:
        """Read the end of the log, before `fence`.

        Raises:
            TaskFencedError: A driver has taken over since ``own_epoch``.
            RetriableError: The storage of the log may answer later.
        """
        newer_epoch = self._thread.run(self._log.poll()).epoch
        if newer_epoch > own_epoch:
            msg = "another driver has taken over this job"
            raise TaskFencedError(msg, own_epoch=own_epoch, newer_epoch=newer_epoch)

    def fence(self) -> None:
        """Fence older drivers: from here on only this one decides the job's identity.

        Raises:
            ConfigError: The log has moved elsewhere.
            TaskFencedError: Another driver has taken over meanwhile.
        """
        fault_point("epoch_record.before")
        self._thread.run(self._log.take_over(f"{socket.gethostname()}:{os.getpid()}"))
        fault_point("epoch_record.after")

    def take_over(
        self,
        commits: JobCommits,
        identity: JobIdentity,
        find_abandoned: Callable[[SubmitPlan], Collection[int]],
    ) -> Resumption | None:
        """Roll finished uploads forward, and fix where this driver session begins.

        Where the job stands is read now, after the fence: until then an older driver may go on.

        Args:
            commits: Of this driver.
            identity: Of the job, decided after `fence`.
            find_abandoned: Asks the hosts; see `roll_forward`. Blocking.

        Returns:
            Where the job goes on, with the commit that was rolled forward; None for a new job.

        Raises:
            CheckpointLocationError: As of `check_location`; an older driver has gone on meanwhile.
            ConfigError: Likewise.
        """
        resumption = self._find_checked(identity)
        if resumption is None:
            return None
        adopt(self._location, self._log.view)
        return self._thread.run(self._take_over(resumption, commits, identity, find_abandoned))

    async def _take_over(
        self,
        resumption: "Resumption",
        commits: JobCommits,
        identity: JobIdentity,
        find_abandoned: Callable[[SubmitPlan], Collection[int]],
    ) -> "Resumption":
        current = self._log.view.last_commit
        if resumption.is_new_query and current is not None and current.query is not None:
            own = msgspec.structs.replace(identity, stores=current.identity.stores)
            first = first_commit(current, own, current.checkpoint_id, self._log.epoch)
            await self._log.append(first)
            logger.info("a new query takes over the state: checkpoint_id=%s", first.checkpoint_id)
        rolled = await roll_forward(
            resumption,
            self._log.view,
            self._checkpoints,
            commits,
            identity=identity,
            clock=self._clock,
            find_abandoned=lambda plan: self._thread.executor.run(find_abandoned, plan),
        )
        committed = commits.committed_batch
        fault_point("base_record.before")
        await self._log.go_on_from(resumption.query_id, resumption.head, identity.stores)
        fault_point("base_record.after")
        if rolled is not None:
            commits.report_rolled_forward(rolled)
        return replace(resumption, committed=committed)

    def _find_checked(self, identity: JobIdentity) -> "Resumption | None":
        resumption = find_resumption(self._location, self._log.view, self._start_from)
        if resumption is not None:
            check_stores(identity, self._log.view, resumption)
        return resumption


def check_stores(identity: JobIdentity, view: LogView, resumption: Resumption) -> None:
    """Let the stores of a job change only where all its state is in the last commit.

    What was delivered since then was computed with the stores of the session before: a replay with
    others has another result, and what lies on the hosts has others in it.

    Raises:
        ConfigError: They differ, and a batch was delivered since the last commit, or one is open.
    """
    if view.stores in ({}, identity.stores):
        return
    if resumption.head <= resumption.committed and not view.open_attempts:
        return
    before, now = (
        ",".join(store for of in stores.values() for store in of)
        for stores in (view.stores, identity.stores)
    )
    raise ConfigError(
        "the stores that are backed up cannot change now, as not all state is committed:"
        f" before={before} now={now} head={resumption.head} committed={resumption.committed}",
        key="state.variables.<variable>.store",
        hint=f"start once with the former settings, which had the stores {before}; end the query"
        " by stop(), which commits; then change the settings",
    )


def find_resumption(
    location: CheckpointLocation, view: LogView, start_from: str | None = None
) -> Resumption | None:
    """Check that a checkpoint location belongs to the log; None if nothing was committed.

    Blocking; reads the location only.

    Args:
        location: The query's.
        view: Of the job log.
        start_from: The checkpoint id from which a new query is to go on, if the settings name one.

    Raises:
        ConfigError: The job cannot go on from that checkpoint, or was not made to its end.
        CheckpointLocationError: It belongs to another job or query, is older, damaged, or gone.
    """
    if view.is_half_made:
        raise ConfigError(
            f"the job was only partly made: location={location.uri}",
            key="job.name",
            hint="run `statekeep savepoint restore`, `rescale` or `import` again; or `statekeep reset`"
            " this job, to start it with empty state",
        )
    commit = view.last_commit
    newest = location.newest("commits")
    if is_new_query(location, view, start_from):
        return Resumption(query_id="", committed=-1, head=-1, is_new_query=True)
    if commit is None or commit.query is None:
        if commit is not None and commit.checkpoints:
            raise _mismatch(
                location,
                "the checkpoint location was used, but the job is to go on under a new query:"
                f" checkpoint_id={commit.checkpoint_id}",
                "give a fresh checkpoint location, and the source the offsets that"
                " find_starting_point returns",
            )
        if newest >= 0:
            raise _mismatch(
                location,
                "the checkpoint location was used, but the job log has no commit",
                "check job.name, job.log.backend and the uri of the backend that holds the job log;"
                " if the query ran on Spark's own operator, `import_spark_state` takes its state over; to"
                " start anew, give a new checkpoint location",
            )
        return None
    _check_query(location, commit.query.query_id)
    to_adopt(location, view)
    # A batch is recorded before Spark writes its commit: at most one is between the two. What no
    # readable record that counts says, the location itself may.
    if not view.newest_done_batch <= newest <= view.newest_possible_batch:
        raise _mismatch(
            location,
            f"the checkpoint location and the job log are of different times: commits={newest}"
            f" logged={max([*view.batches, commit.batch])} committed={commit.batch}"
            f" done={view.newest_done_batch}",
            "put the checkpoint location back as it was at the job's last batch; a copy of an"
            " earlier time fits only the backup location of the same time",
        )
    location.check_newest()
    _check_begun(location, view, newest + 1)
    return Resumption(commit.query.query_id, commit.batch, max(newest, commit.batch))


def _check_begun(location: CheckpointLocation, view: LogView, batch: int) -> None:
    """Make sure that a batch which was begun before is run again with its own boundaries (R3).

    Spark writes them before it calls the batch: where they lack, the location is a copy from before.
    """
    known = view.known_offsets(batch)
    if known is not None and location.read(f"offsets/{batch}") != known:
        raise _mismatch(
            location,
            f"the checkpoint location lacks the offsets of a batch that was run: batch={batch}",
            f"put the checkpoint location back as it was, with offsets/{batch}: Spark would run the"
            " batch with other rows, and what was delivered would be delivered again",
        )


def _check_query(location: CheckpointLocation, expected: str) -> None:
    query_id = location.query_id()
    if query_id == expected:
        return
    what = "is empty" if query_id is None else f"is of another query: query_id={query_id}"
    if expected == NO_QUERY:
        raise _mismatch(
            location,
            f"the job was made without a checkpoint location, and this one {what}",
            "the location of another job is not one to go on at. Let a query that reads topics of Kafka go on"
            f" with a fresh one and the setting {KEY}; else drop the clone, and make it with the locations"
            " of its origin and its own",
        )
    raise _mismatch(
        location,
        f"the checkpoint location {what}, the job log is of query_id={expected}",
        "give the checkpoint location that the job has always had, or put a copy of it back; it"
        " cannot be rebuilt from the log, which does not know what the sources have read. Without"
        f" it, let a query that reads topics of Kafka go on with a fresh one ({KEY}), or start anew"
        " under another job.name with another checkpoint location; read_state still reads what was"
        " committed",
    )


def _mismatch(location: CheckpointLocation, message: str, hint: str) -> CheckpointLocationError:
    error = CheckpointLocationError(f"{message}: location={location.uri}")
    error.add_note(f"hint: {hint}")
    return error


async def roll_forward(
    resumption: Resumption,
    view: LogView,
    checkpoints: CheckpointStore,
    commits: JobCommits,
    *,
    identity: JobIdentity,
    clock: Clock,
    find_abandoned: FindAbandoned,
) -> CommitSummary | None:
    """Complete the attempt that the driver before left open, once all its uploads are there.

    On the commit thread's loop, after the epoch record and before the base record, which makes
    abort what stays open here.

    Args:
        resumption: Where the job goes on.
        view: The job log.
        checkpoints: Where the sidecars put their entries.
        commits: Writes the commit record.
        identity: Of the job as it is now.
        clock: For the wait.
        find_abandoned: Asked once if entries are lacking: for which tasks a wait is in vain.

    Returns:
        The commit; None if there is no such attempt, or if it cannot be completed: a task failed, no
        living sidecar is seen that uploads its version, its entry cannot be read, or the uploads
        take longer than a start should.

    Raises:
        TaskFencedError: Another driver has taken over.
        RetriableError: The storage of the job log may answer later.
    """
    if not view.open_attempts:
        return None
    key = max(view.open_attempts)
    attempt = view.open_attempts[key]
    if not resumption.committed < attempt.batch <= resumption.head:
        return None
    current = view.last_commit
    if current is None or len(attempt.versions) < current.identity.partitions:
        return None  # a tool's, which never had every task
    if view.stores != identity.stores:
        return None  # its uploads are not of the stores that the record would list
    try:
        plan = _plan(key, attempt, view)
        gathered = await _gather(plan, checkpoints, clock, find_abandoned)
        return await commits.record_now(key, attempt, gathered)
    except (CommitFailedError, CheckpointCorruptError, UnknownFormatError) as exc:
        logger.error(  # noqa: TRY400 - the text says it all
            "open attempt cannot be completed, it is aborted: attempt=%d-%d batch=%d error=%s",
            *key,
            attempt.batch,
            exc,
        )
        return None


async def _gather(
    plan: SubmitPlan,
    checkpoints: CheckpointStore,
    clock: Clock,
    find_abandoned: FindAbandoned,
) -> GatheredTasks:
    """Wait for the entries that lack, unless one of them will never come."""
    deadline_ns = clock.monotonic_ns() + _ROLL_FORWARD_NS
    with suppress(EntriesLackError):
        return await gather(plan, checkpoints, clock, deadline_ns=clock.monotonic_ns())
    abandoned = await _ask_hosts(plan, find_abandoned, _ROLL_FORWARD_NS / 1e9)
    # Looked for afterwards: a sidecar writes the entry before it forgets the submission.
    entries = await checkpoints.read(f"{plan.epoch}-{plan.attempt}")
    in_vain = set(abandoned) - {partition_of(task) for task in entries}
    if in_vain:
        msg = f"no sidecar is left to finish a task's backup: task={task_name(min(in_vain))}"
        raise CommitFailedError(msg, checkpoint_id=plan.checkpoint_id, step="upload")
    return await gather(plan, checkpoints, clock, deadline_ns=deadline_ns)


async def _ask_hosts(
    plan: SubmitPlan, find_abandoned: FindAbandoned, timeout_s: float
) -> Collection[int]:
    """Return what the hosts say; nothing where they cannot be asked: it only saves waiting."""
    try:
        return await asyncio.wait_for(find_abandoned(plan), timeout_s)
    except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
        logger.warning("hosts cannot be asked which uploads are running: error=%r", exc)
        return ()


def _plan(key: tuple[int, int], attempt: AttemptRecord, view: LogView) -> SubmitPlan:
    """Return what the driver before submitted, as far as gathering asks for it."""
    return SubmitPlan(
        epoch=key[0],
        attempt=key[1],
        checkpoint_id=attempt.checkpoint_id,
        batch=attempt.batch,
        versions={partition_of(task): attempt.versions[task] for task in attempt.uploads},
        bases=encoded_bases(bases_of(view)),
        checkpoints={},
    )
