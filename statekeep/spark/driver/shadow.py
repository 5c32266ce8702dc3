"""Stepping replay: recorded batches run again, one by one, beside the query's own location (R6)."""

import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from statekeep.errors import CheckpointLocationError, StateBackupError
from statekeep.spark.driver.location import CheckpointLocation

logger = logging.getLogger(__name__)

BatchCall = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """The boundaries of one batch, as text of the files that Spark wrote for it."""

    offsets: str
    """``offsets/<batch>``"""
    commit: str | None
    """``commits/<batch>``; None for the newest batch, which is never a start of a step."""


def replay(
    frame: DataFrame,
    query: CheckpointLocation,
    recorded: Mapping[int, RecordedBatch],
    call: BatchCall,
    *,
    start: int,
    end: int,
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

    Raises:
        CheckpointLocationError: Boundaries are missing, or Spark ran something else.
        StateBackupError: A batch failed; the cause is chained.
    """
    shadow = query.sibling(f"-statekeep-shadow-{uuid.uuid4().hex[:12]}")
    try:
        _prepare(shadow, query, recorded, start)
        for batch in range(start + 1, end + 1):
            _step(frame, shadow, _boundaries(recorded, batch), batch, call)
    finally:
        shadow.delete()


def _prepare(
    shadow: CheckpointLocation,
    query: CheckpointLocation,
    recorded: Mapping[int, RecordedBatch],
    start: int,
) -> None:
    shadow.delete()
    shadow.write("metadata", json.dumps({"id": str(uuid.uuid4())}))
    shadow.copy_from(query, "sources")
    if start >= 0:
        boundaries = _boundaries(recorded, start)
        if boundaries.commit is None:
            msg = f"the commit of a recorded batch is missing: batch={start}"
            raise CheckpointLocationError(msg)
        shadow.write(f"offsets/{start}", boundaries.offsets)
        shadow.write(f"commits/{start}", boundaries.commit)


def _step(
    frame: DataFrame,
    shadow: CheckpointLocation,
    boundaries: RecordedBatch,
    batch: int,
    call: BatchCall,
) -> None:
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
    query = writer.trigger(once=True).start()
    try:
        query.awaitTermination()
    except Exception as exc:
        if failures:
            raise failures[0] from exc
        msg = f"replay of a batch failed: batch={batch}"
        raise StateBackupError(msg) from exc
    if shadow.newest("commits") != batch or shadow.read(f"offsets/{batch}") != boundaries.offsets:
        msg = f"replay ran other boundaries than recorded: batch={batch} ran={seen}"
        raise CheckpointLocationError(msg)
    logger.info("batch replayed: batch=%d", batch)


def _boundaries(recorded: Mapping[int, RecordedBatch], batch: int) -> RecordedBatch:
    try:
        return recorded[batch]
    except KeyError:
        msg = f"boundaries of a batch are not at hand: batch={batch}"
        error = CheckpointLocationError(msg)
        error.add_note(
            "hint: raise spark.sql.streaming.minBatchesToRetain, or lower task.commit.ms, so that"
            " commits keep up with batches"
        )
        raise error from None
