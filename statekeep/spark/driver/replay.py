"""Replay: what it asks of Spark and the sources, and recorded batches run again, one by one (R6, R12)."""

# The JVM's objects have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportOptionalCall=false
# pyright: reportCallIssue=false

import json
import logging
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statekeep.commit.policy import BATCH_MARGIN
from statekeep.errors import CheckpointLocationError, ConfigError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.spark.driver.location import CheckpointLocation

logger = logging.getLogger(__name__)

_WITHOUT_REPLAY: Final[Mapping[str, str]] = {
    "socket": "it keeps no row that it has given out",
}
"""``{name of the source: why it cannot give a batch again}``. Spark asks of a source that it can,
and no source says that it cannot: of one that is not named here, ``task.commit.every.batch`` does."""


def check_retention(spark: SparkSession, replay_max_batches: int) -> None:
    """Check that Spark keeps the boundaries of every batch that a replay may need.

    Raises:
        ConfigError: It may have forgotten some by then.
    """
    key = "spark.sql.streaming.minBatchesToRetain"
    kept = int(spark.conf.get(key) or 100)
    if replay_max_batches > kept - BATCH_MARGIN:
        raise ConfigError(
            "Spark forgets batches that a replay may need:"
            f" task.replay.max.batches={replay_max_batches} {key}={kept}",
            key="task.replay.max.batches",
            hint=f"raise {key} to at least {replay_max_batches + BATCH_MARGIN}",
        )


def source_limits(frame: DataFrame) -> list[str]:
    """Return what a query does without because of what its sources are; nothing for most.

    Such a source cannot give a delivered batch again, so that every batch has to be committed
    before it ends: then there is nothing to replay.
    """
    return [
        f"nothing is replayed, each batch is committed before it ends: source={source} ({reason})"
        for source, _ in _sources(frame)
        if (reason := _WITHOUT_REPLAY.get(source.lower())) is not None
    ]


def check_sources(frame: DataFrame, *, is_replay_needed: bool) -> None:
    """Look for sources, and for options of sources, that drop data which a replay would need.

    Called on the driver at the start of each query. ``failOnDataLoss=false`` is a warning: should
    data be lost, the replay finds other digests than recorded and fails.

    Args:
        frame: The streaming input.
        is_replay_needed: False if every batch is committed before it ends.

    Raises:
        ConfigError: A source deletes or moves files that it has read, or cannot read anything
            twice.
    """
    for limit in source_limits(frame):
        if is_replay_needed:
            raise ConfigError(
                f"a source cannot give a batch again: {limit}",
                key="task.commit.every.batch",
                hint="leave task.commit.every.batch out, or set it to true",
            )
        logger.warning("the query runs with a limit: %s", limit)
    for source, options in _sources(frame):
        clean_source = options.get("cleansource", "off").lower()
        if clean_source != "off" and is_replay_needed:
            raise ConfigError(
                f"a source removes files that a replay would read again: source={source}"
                f" cleanSource={clean_source}",
                key="cleanSource",
                hint="take the option out and remove files that are older than the oldest retained"
                " commit by other means, or set task.commit.every.batch=true",
            )
        if options.get("failondataloss", "true").lower() == "false":
            logger.warning(
                "a source may lose data without an error: source=%s failOnDataLoss=false", source
            )


def _sources(frame: DataFrame) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield name and options, by keys in lower case, of each streaming source of a plan."""
    pending: list[Any] = [frame._jdf.queryExecution().analyzed()]  # noqa: SLF001 - the JVM's plan
    while pending:
        node = pending.pop()
        children = node.children()
        pending += [children.apply(index) for index in range(children.size())]
        match node.nodeName():
            case "StreamingRelation":
                yield str(node.sourceName()), _scala_options(node.dataSource().options())
            case "StreamingRelationV2":
                options = node.extraOptions().asCaseSensitiveMap()
                yield str(node.sourceName()), {str(k).lower(): str(options[k]) for k in options}
            case _:
                pass


def _scala_options(options: Any) -> dict[str, str]:  # noqa: ANN401 - a Scala Map
    found: dict[str, str] = {}
    entries = options.iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry.productElement(0)).lower()] = str(entry.productElement(1))
    return found


_SHADOW: Final = "-statekeep-shadow-"
"""After the query's location, before the epoch and a random part."""

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


def replay(
    frame: DataFrame,
    query: CheckpointLocation,
    recorded: Mapping[int, RecordedBatch],
    call: BatchCall,
    *,
    start: int,
    end: int,
    epoch: int,
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
        epoch: Of this driver: tells whose the shadow location is.

    Raises:
        CheckpointLocationError: Boundaries are missing, or Spark ran something else.
        StateBackupError: A batch failed; the cause is chained.
    """
    shadow = query.sibling(f"{_SHADOW}{epoch}-{uuid.uuid4().hex[:12]}")
    try:
        _prepare(shadow, query, recorded, start)
        for batch in range(start + 1, end + 1):
            _step(frame, shadow, _boundaries(recorded, batch), batch, call)
    finally:
        shadow.delete()


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
    logger.info("batch replayed: batch=%d", batch)
    fault_point("replay.after_step")


def _boundaries(recorded: Mapping[int, RecordedBatch], batch: int) -> RecordedBatch:
    try:
        return recorded[batch]
    except KeyError:
        raise boundaries_are_gone(batch) from None


def boundaries_are_gone(batch: int) -> CheckpointLocationError:
    """Return the error of a batch that cannot be replayed, as nobody knows where it ended."""
    error = CheckpointLocationError(f"boundaries of a batch are not at hand: batch={batch}")
    error.add_note(
        "hint: raise spark.sql.streaming.minBatchesToRetain, or lower task.commit.ms or"
        " task.replay.max.batches, so that commits keep up with batches"
    )
    return error


def _replay_failed(batch: int) -> StateBackupError:
    error = StateBackupError(f"replay of a batch failed: batch={batch}")
    error.add_note(SOURCE_HINT)
    return error
