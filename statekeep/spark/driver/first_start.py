"""The first start of a query that goes on with state: a job's, or that of Spark's own operator.

A job may go on under a new query: another checkpoint location, batches numbered from 0 again. Batch
numbers compare within one query only. So the commit to go on from is recorded once more as batch -1,
without a query at first, and with the new one from its first batch call on.

A query that ran on Spark's own stateful operator until now keeps its checkpoint location.
`import_spark_state` leaves the location as it is, and records its files as they are to be. The start
makes them so. Last it renames the metadata of Spark's operator: Spark compares it with the plan, and
would refuse ours. That name stays, and says that nothing is left to do. Spark's operator may leave
metadata here again, if the old program is started by mistake. It fails in its first batch, as it
misses what was renamed; what it left is put aside too.
"""

import logging
from collections.abc import Collection, Sequence
from itertools import count
from typing import Final

import msgspec

from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.spark.driver.commit_records import (
    Offsets,
    commit_offsets,
    stands_apart,
    topic_offsets,
)
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.ticks import has_ticks

logger = logging.getLogger(__name__)

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
            f"the job has made another commit since: {KEY}={start_from} "
            f"newest={commit.checkpoint_id}",
            key=KEY,
            hint="take the starting point again, once the job has stopped",
        )
    offsets_to_start_from(commit)
    return location.newest("commits") < 0


def offsets_to_start_from(commit: CommitRecord) -> Offsets:
    """Return the last offset read of each topic partition, all of which a new query can start from.

    Raises:
        ConfigError: There is none, or the commit does not say exactly what its query had read.
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
        epoch: Of this driver session: its attempts are numbered from 1, so that 0 is free.
    """
    if before is not None:
        return msgspec.structs.replace(
            before, attempt_epoch=epoch, attempt=0, batch=-1, query=None, change=None
        )
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
                    "the query would not go on reading where the commit ends: "
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
        hint="remove the setting, or give a fresh checkpoint location",
    )


_METADATA: Final = "_metadata"
"""Of an operator: ``state/<number>/_metadata``."""


def to_adopt(location: CheckpointLocation, view: LogView) -> CommitRecord | None:
    """Return the commit that the location is to be adopted for; None if nothing is to be done.

    Raises:
        CheckpointLocationError: Spark has run a batch since the import.
    """
    commit = view.last_commit
    if commit is None or commit.query is None or view.has_begun:
        return None
    operators = operators_of_spark(location)
    if not operators or any(
        _adopted_name(commit.batch) in location.names(operator) for operator in operators
    ):
        return None
    if not _is_imported(location, commit.batch, commit.query):
        return None
    newest = max(location.newest("offsets"), location.newest("commits"))
    if newest > commit.batch:
        error = CheckpointLocationError(
            "Spark's own operator has run a batch since its state was imported: "
            f"location={location.uri} imported={commit.batch} begun={newest}"
        )
        error.add_note("hint: `statekeep reset` this job, and import the state again")
        raise error
    return commit


def adopt(location: CheckpointLocation, view: LogView) -> None:
    """Make the files of the location what the imported commit says, if that is to be done.

    A start that is interrupted here is continued by the next one. Metadata that Spark's operator has
    left since is put aside.
    """
    commit = to_adopt(location, view)
    if commit is None or commit.query is None:
        for operator in operators_of_spark(location):
            _put_aside(location, operator)
        return
    query = commit.query
    for batch, text in (commit.batch - 1, query.previous_offsets), (commit.batch, query.offsets):
        if text is not None and location.read(f"offsets/{batch}") != text:
            location.write(f"offsets/{batch}", text)
    for operator in operators_of_spark(location):
        location.move(f"{operator}/{_METADATA}", f"{operator}/{_adopted_name(commit.batch)}")


def check_imported_time_mode(view: LogView, modes: Collection[str]) -> None:
    """Make sure that the operator goes by the clock of Spark's whose state it gets.

    Args:
        view: Of the job log.
        modes: The time modes of the query's operators.

    Raises:
        ConfigError: It does not.
    """
    commit = view.last_commit
    imported = "" if commit is None or commit.query is None else commit.query.imported_time_mode
    if imported and imported not in modes:
        raise ConfigError(
            "the state was imported from an operator of another time mode: "
            f"imported={imported} timeMode={','.join(modes)}",
            key="timeMode",
            hint="give the time mode that the query had on Spark. If timeoutConf was wrong in the"
            " import, `statekeep reset` this job before its first start, and import the state again",
        )


def newest_offsets(location: CheckpointLocation, view: LogView) -> str | None:
    """Return the text of the newest ``offsets/<batch>``, as it is once the location is adopted."""
    commit = to_adopt(location, view)
    if commit is not None and commit.query is not None:
        return commit.query.offsets
    newest = location.newest("offsets")
    return None if newest < 0 else location.read(f"offsets/{newest}")


def operators_of_spark(location: CheckpointLocation) -> Sequence[str]:
    """Return the directories of Spark's own operators, unless the location was adopted."""
    found = [f"state/{name}" for name in location.names("state")]
    return [operator for operator in found if _METADATA in location.names(operator)]


def _is_imported(location: CheckpointLocation, batch: int, query: QueryState) -> bool:
    """Return whether a commit holds state of Spark's own operator.

    The first commits that did so do not say it: then the offsets tell, if the query has ticks. Without
    them only the metadata is to be put aside.
    """
    if query.imported_time_mode:
        return True
    return has_ticks(query.offsets or "") and not has_ticks(location.read(f"offsets/{batch}") or "")


def _adopted_name(batch: int) -> str:
    return f"{_METADATA}-until-batch-{batch}"


def _put_aside(location: CheckpointLocation, operator: str) -> None:
    taken = location.names(operator)
    names = (f"{_METADATA}-aside-{number}" for number in count(1))
    name = next(name for name in names if name not in taken)
    logger.warning(
        "Spark's own operator was started here; its metadata is moved aside: location=%s "
        "name=%s/%s",
        location.uri,
        operator,
        name,
    )
    location.move(f"{operator}/{_METADATA}", f"{operator}/{name}")
