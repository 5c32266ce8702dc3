"""The state of a job under a new query: another checkpoint location, batches numbered from 0 again.

Batch numbers compare within one query only. So the commit to go on from is recorded once more as
batch -1, without a query at first, and with the new one from its first batch call on.
"""

from typing import Final

import msgspec

from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.errors import ConfigError
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.source_offsets import (
    Offsets,
    commit_offsets,
    stands_apart,
    topic_offsets,
)

KEY: Final = "job.start.from.checkpoint"


def is_new_query(location: CheckpointLocation, view: LogView, start_from: str | None) -> bool:
    """Return whether the job's state is to go on under a new query.

    Args:
        location: The query's.
        view: Of the job log.
        start_from: The checkpoint id that the settings name, if they do.

    Raises:
        ConfigError: They name another checkpoint than the newest, whose offsets and the state would
            not agree, or one that no query can go on from, or the location is in use.
    """
    commit = view.last_commit
    if start_from is None:
        # Recorded as batch -1 by a start that did not get to its first batch.
        is_begun = commit is not None and commit.query is None and bool(commit.checkpoints)
        return is_begun and location.newest("commits") < 0
    if commit is None:
        raise ConfigError(
            f"the job log has no commit to go on from: {KEY}={start_from}",
            key=KEY,
            hint="check job.name and the uri of the backend that holds the job log, which without"
            " settings is beside the checkpoint location",
        )
    query_id = location.query_id()
    if commit.query is not None and query_id is not None:
        if query_id == commit.query.query_id and commit.query.started_from != start_from:
            raise _in_use(location, start_from)
        return False
    if commit.checkpoint_id != start_from:
        raise ConfigError(
            f"the job has another newest commit by now: {KEY}={start_from} "
            f"newest={commit.checkpoint_id}",
            key=KEY,
            hint="take the starting point again, once the job has stopped",
        )
    offsets_to_start_from(commit)
    return location.newest("commits") < 0


def offsets_to_start_from(commit: CommitRecord) -> Offsets:
    """Return the last offset read of each topic partition, all of which a new query can start from.

    Raises:
        ConfigError: There is none, or the commit does not tell exactly what its query had read.
        CheckpointCorruptError: A checkpoint in the record cannot be read.
    """
    offsets = commit_offsets(commit)
    read = None if commit.query is None else commit.query.offsets
    if not offsets or (read is not None and offsets != topic_offsets(read)):
        raise ConfigError(
            "the commit does not have the offsets of the topics that its query reads: "
            f"checkpoint_id={commit.checkpoint_id} batch={commit.batch}",
            key=KEY,
            hint="let the query make another commit; one that reads no topic of Kafka cannot go on"
            " with another checkpoint location",
        )
    apart = None if read is None else stands_apart(read)
    if apart is not None:
        raise ConfigError(
            "two sources of the query have read a topic up to different offsets: "
            f"checkpoint_id={commit.checkpoint_id} topic={apart.stream} partition={apart.partition}",
            key=KEY,
            hint="let the query catch up with the topic before it stops",
        )
    return offsets


def first_commit(
    before: CommitRecord | None, identity: JobIdentity, checkpoint_id: str, epoch: int
) -> CommitRecord:
    """Return what is there before the first batch of a query, still without the query.

    Args:
        before: The commit to go on from; None for empty state.
        identity: Of the job.
        checkpoint_id: Of empty state.
        epoch: Of this reign: its attempts are numbered from 1, so that 0 is free.
    """
    if before is not None:
        return msgspec.structs.replace(before, attempt_epoch=epoch, attempt=0, batch=-1, query=None)
    return CommitRecord(
        attempt_epoch=0,
        attempt=0,
        batch=-1,
        checkpoint_id=checkpoint_id,
        identity=identity,
    )


def with_query(first: CommitRecord, location: CheckpointLocation) -> CommitRecord:
    """Return a first commit with the query, which has come to its first batch.

    Raises:
        ConfigError: A source did not begin where the commit to go on from ends.
        CheckpointLocationError: The location has no ``metadata``.
    """
    _check_start(location, first)
    query = QueryState(
        query_id=location.query_id() or "",
        metadata=location.require("metadata"),
        started_from=first.checkpoint_id if first.checkpoints else None,
    )
    return msgspec.structs.replace(first, query=query)


def query_state(
    location: CheckpointLocation, current: CommitRecord | None, batch: int
) -> QueryState:
    """Return what the commit record of a batch says of the query.

    Args:
        location: The query's.
        current: The commit before it.
        batch: The batch.

    Raises:
        CheckpointLocationError: A file is missing.
    """
    before = None if current is None else current.query
    return QueryState(
        query_id=location.query_id() or "",
        metadata=location.require("metadata"),
        previous_offsets=location.read(f"offsets/{batch - 1}") if batch > 0 else None,
        offsets=location.require(f"offsets/{batch}"),
        commit=location.read(f"commits/{batch}"),
        started_from=None if before is None else before.started_from,
    )


def _check_start(location: CheckpointLocation, commit: CommitRecord) -> None:
    """Make sure that every source goes on in each topic partition where the commit ends.

    A source writes where it began to ``sources/<number>/0``. A partition that the commit does not
    have came later, or its topic did.
    """
    ended = commit_offsets(commit)
    if not ended:
        return
    for source in location.names("sources"):
        text = location.read(f"sources/{source}/0") or ""
        for ssp, before in topic_offsets(text).items():
            last = ended.get(ssp, before)
            if before != last:
                raise ConfigError(
                    "the query does not read on where the commit ends: "
                    f"topic={ssp.stream} partition={ssp.partition} begins_at={int(before) + 1} "
                    f"expected={int(last) + 1} location={location.uri}",
                    key=KEY,
                    hint="give the source the option startingOffsets as find_starting_point has it,"
                    " and another fresh checkpoint location",
                )


def _in_use(location: CheckpointLocation, start_from: str) -> ConfigError:
    return ConfigError(
        f"the checkpoint location is in use, its query goes on where it was: {KEY}={start_from} "
        f"location={location.uri}",
        key=KEY,
        hint="take the setting out, or give a fresh checkpoint location",
    )
