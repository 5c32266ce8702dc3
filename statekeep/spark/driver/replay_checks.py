"""Checks at a start that delivered batches can be given again, by Spark and the sources (R12)."""

# The JVM's objects have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportOptionalCall=false
# pyright: reportCallIssue=false

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from statekeep.errors import ConfigError

logger = logging.getLogger(__name__)

REPLAY_MARGIN: Final = 2
"""Batches between the replay limit and what Spark keeps: the one in flight and its predecessor."""

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
    if replay_max_batches > kept - REPLAY_MARGIN:
        raise ConfigError(
            "Spark forgets batches that a replay may need:"
            f" task.replay.max.batches={replay_max_batches} {key}={kept}",
            key="task.replay.max.batches",
            hint=f"raise {key} to at least {replay_max_batches + REPLAY_MARGIN}",
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
