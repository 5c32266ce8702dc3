"""Batches run again with their recorded boundaries, in a checkpoint location beside the query's own (R6)."""

import json
import logging
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statekeep.checkpoint.log_view import LogView
from statekeep.errors import CheckpointLocationError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.spark.driver.location import CheckpointLocation

logger = logging.getLogger(__name__)

_SHADOW: Final = "-statekeep-shadow-"
"""After the query's location, before the epoch and a random part."""
_COPY_TRIES: Final = 5

BatchCall = Callable[[DataFrame, int], None]

SOURCE_HINT: Final = (
    "hint: if the source has lost the data, raise its retention (of a Kafka topic: retention.ms; of"
    " files: cleanSource=off), or lower task.commit.ms: data must be there back to the oldest"
    " retained commit"
)
"""For errors of a replay whose input is not what it was."""


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """The boundaries of one batch, as text of the files that Spark wrote for it."""

    offsets: str
    """``offsets/<batch>``"""
    commit: str | None
    """``commits/<batch>``; None for the newest batch, which is never a start of a step."""


def recorded_batches(
    view: LogView, location: CheckpointLocation, first: int, last: int
) -> dict[int, RecordedBatch]:
    """Gather the boundaries of batches: from the log, and what no record holds from the query's location.

    Args:
        view: What the log amounts to.
        location: Of the query; only read.
        first: The first batch, or -1.
        last: The last one.

    Raises:
        CheckpointLocationError: Those of a batch are gone.
    """
    found: dict[int, RecordedBatch] = {}
    for commit in view.comparable_commits:
        if commit.query is not None and commit.query.offsets is not None:
            found[commit.batch] = RecordedBatch(commit.query.offsets, commit.query.commit)
    for batch, record in list(view.batches.items()):
        following = view.batches.get(batch + 1)
        commit_text = None if following is None else following.previous_commit
        known = found.get(batch)
        found[batch] = RecordedBatch(
            record.offsets, commit_text or (known.commit if known is not None else None)
        )
    return {
        batch: _completed(location, batch, found.get(batch))
        for batch in range(max(first, 0), last + 1)
    }


def _completed(
    location: CheckpointLocation, batch: int, known: RecordedBatch | None
) -> RecordedBatch:
    """Fill from the query's own location what no record holds."""
    offsets = known.offsets if known is not None else None
    commit = known.commit if known is not None else None
    offsets = offsets or location.read(f"offsets/{batch}")
    if offsets is None:
        raise boundaries_are_gone(batch)
    return RecordedBatch(offsets, commit or location.read(f"commits/{batch}"))


def replay(
    frame: DataFrame,
    query: CheckpointLocation,
    recorded: Mapping[int, RecordedBatch],
    call: BatchCall,
    *,
    start: int,
    end: int,
    shadow: CheckpointLocation,
) -> None:
    """Run batches ``start`` + 1 to ``end`` again with their original boundaries.

    Each step is one ``Trigger.Once`` run of the same streaming frame in a *shadow* checkpoint
    location, where Spark finds one pending batch and runs exactly that. The query's own location
    is only read, so that a crash in here just begins the recovery anew. Blocking, on the thread
    that waits for the recovery.

    Args:
        frame: The streaming input, as the query has it.
        query: The query's checkpoint location: its ``sources/`` are copied.
        recorded: Boundaries of the batches from ``start`` - 1 (where there is one) to ``end``.
        call: Gets the rows of each batch and its number.
        start: The batch after which the replay begins; -1 replays from the first.
        end: The last batch to run.
        shadow: Of this replay alone; deleted at its end.

    Raises:
        CheckpointLocationError: Boundaries are missing, or Spark ran something else.
        StateBackupError: A batch failed; the cause is chained.
    """
    try:
        _prepare_shadow(shadow, query, recorded, start)
        for batch in range(start + 1, end + 1):
            _step(frame, shadow, _boundaries(recorded, batch), batch, call)
    finally:
        shadow.delete()


def shadow_beside(query: CheckpointLocation, epoch: int) -> CheckpointLocation:
    """Return a shadow location for one replay of a driver, which `sweep_shadows` finds."""
    return query.sibling(f"{_SHADOW}{epoch}-{uuid.uuid4().hex[:12]}")


def sweep_shadows(query: CheckpointLocation, epoch: int) -> int:
    """Delete the shadow locations that drivers before ``epoch`` left behind; return how many.

    Those drivers have crashed or are fenced, so that no replay of theirs can count any more.
    """
    leftovers = [suffix for suffix in query.sibling_suffixes(_SHADOW) if _epoch_of(suffix) < epoch]
    for suffix in leftovers:
        query.sibling(suffix).delete()
    if leftovers:
        logger.info("shadow locations swept: location=%s count=%d", query.uri, len(leftovers))
    return len(leftovers)


def _epoch_of(suffix: str) -> int:
    number = suffix.removeprefix(_SHADOW).partition("-")[0]
    return int(number) if number.isdecimal() else sys.maxsize


def _prepare_shadow(
    shadow: CheckpointLocation,
    query: CheckpointLocation,
    recorded: Mapping[int, RecordedBatch],
    start: int,
) -> None:
    _copy_sources(shadow, query)
    shadow.write("metadata", json.dumps({"id": str(uuid.uuid4())}))
    if start >= 0:
        boundaries = _boundaries(recorded, start)
        if boundaries.commit is None:
            msg = f"the commit of a recorded batch is missing: batch={start}"
            raise CheckpointLocationError(msg)
        shadow.write(f"offsets/{start}", boundaries.offsets)
        shadow.write(f"commits/{start}", boundaries.commit)


def _copy_sources(shadow: CheckpointLocation, query: CheckpointLocation) -> None:
    """Copy what the sources of a query have noted, which may run: then a file may go while it is read.

    Raises:
        CheckpointLocationError: It cannot be copied.
    """
    for left in reversed(range(_COPY_TRIES)):
        shadow.delete()
        try:
            shadow.copy_from(query, "sources")
        except Py4JError as exc:
            if not left:
                msg = (
                    f"cannot copy the checkpoint location: from={query.uri}/sources to={shadow.uri}"
                )
                raise CheckpointLocationError(msg) from exc
        else:
            return


def _step(
    frame: DataFrame,
    shadow: CheckpointLocation,
    boundaries: RecordedBatch,
    batch: int,
    call: BatchCall,
) -> None:
    fault_point("replay.before_step")
    shadow.write(f"offsets/{batch}", boundaries.offsets)
    failures: list[BaseException] = []
    seen: list[int] = []

    def guarded(rows: DataFrame, number: int) -> None:
        seen.append(number)
        try:
            call(rows, number)
        except BaseException as exc:
            failures.append(exc)
            raise

    writer = frame.writeStream.foreachBatch(guarded).option("checkpointLocation", shadow.uri)
    with shadow.plain_renames():
        query = writer.trigger(once=True).start()
    try:
        query.awaitTermination()
    except Exception as exc:
        if failures and not isinstance(failures[0], (PySparkException, Py4JError)):
            raise failures[0] from exc
        raise _replay_failed(batch) from (failures[0] if failures else exc)
    finally:
        query.stop()  # one that was broken off would go on over a location that is deleted
    if shadow.newest("commits") != batch or shadow.read(f"offsets/{batch}") != boundaries.offsets:
        msg = f"replay ran other boundaries than recorded: batch={batch} ran={seen}"
        raise CheckpointLocationError(msg)
    logger.debug("batch replayed: batch=%d", batch)
    fault_point("replay.after_step")


def _boundaries(recorded: Mapping[int, RecordedBatch], batch: int) -> RecordedBatch:
    try:
        return recorded[batch]
    except KeyError:
        raise boundaries_are_gone(batch) from None


def boundaries_are_gone(batch: int) -> CheckpointLocationError:
    """Return the error of a batch that cannot be replayed, as its end is not known."""
    error = CheckpointLocationError(
        f"the offsets of a batch are gone, it cannot run again: batch={batch}"
    )
    error.add_note(
        "hint: raise spark.sql.streaming.minBatchesToRetain, or lower task.commit.ms or"
        " task.replay.max.batches, so that commits keep up with batches"
    )
    return error


def _replay_failed(batch: int) -> StateBackupError:
    error = StateBackupError(f"replay of a batch failed: batch={batch}")
    error.add_note(SOURCE_HINT)
    return error
