"""The plan of a frame, which only the JVM knows."""

import re
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statekeep.errors import ConfigError

_OF_WHOLE_STREAM: Final = {
    "Aggregate": "an aggregate",
    "Deduplicate": "dropDuplicates",
    "Distinct": "distinct",
    "EventTimeWatermark": "withWatermark, as all operators have the watermark of the input",
    "Except": "except",
    "FlatMapCoGroups": "a function of groups",
    "FlatMapGroups": "a function of groups",
    "GlobalLimit": "limit",
    "Intersect": "intersect",
    "Offset": "offset",
    "Sample": "a sample",
    "Tail": "tail",
    "TransformWithState": "transformWithState of Spark's own",
    "Window": "a window function",
}
"""By the beginning of a node's name: what gives another result for each batch alone."""
_STATEFUL_NODE: Final = re.compile(
    r"^[\s:|+-]*(?:\*?\(\d+\) )?!?(\w+).*\bstate info \[ checkpoint = [^,\s]", re.MULTILINE
)
"""With ``!`` Spark marks a node of whose expressions it knows no input, as those in Python. Without a place
for its state a node was run once, outside of a stream, and its result was cached."""
_ONE_SIDED: Final = (
    ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"),
    ("Inner", "Cross", "RightOuter"),
)
"""Joins with a static frame that can be made batch by batch, with the stream on the left or on the right."""


def stream_of(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a stream without rows, to check a plan by: it cannot be started."""
    java: Any = spark._jsparkSession  # noqa: SLF001 - plans are the JVM's
    empty: Any = spark.createDataFrame([], schema)._jdf  # noqa: SLF001
    rdd = empty.queryExecution().toRdd()
    return DataFrame(java.internalCreateDataFrame(rdd, empty.schema(), True), spark)  # noqa: FBT003 - Java's


def check_by_batch(frame: DataFrame) -> None:
    """Refuse what gives another result for a batch alone than for the whole stream.

    Args:
        frame: Made from `stream_of`, whose plan tells the stream from static frames.

    Raises:
        ConfigError: The plan has such a step.
    """
    for node, below in plan_nodes(frame):
        streams = [bool(child.isStreaming()) for child in below]
        if not any(streams):
            continue
        name = node.nodeName()
        found = next(
            (text for start, text in _OF_WHOLE_STREAM.items() if name.startswith(start)), None
        )
        if name == "Sort" and getattr(node, "global")():
            found = "a sort of the whole stream"
        if _has_increasing_id(node):
            found = "monotonically_increasing_id"
        if name == "Union" and not all(streams):
            found = "a union with a static frame"
        if name == "Join":
            how = node.joinType().toString()
            if all(streams):
                found = "a join of the stream with itself"
            elif how not in _ONE_SIDED[streams.index(True)]:
                found = f"a join of this kind with a static frame: how={how}"
        if found is not None:
            raise ConfigError(
                f"not possible after a stateful operator of statekeep: {found}",
                hint="do it to each batch in foreachBatch, or inside the processor",
            )


def _has_increasing_id(node: Any) -> bool:  # noqa: ANN401 - a Java object
    if node.deterministic():
        return False
    expressions = node.expressions()
    all_leaves = (expressions.apply(at).collectLeaves() for at in range(expressions.size()))
    return any(
        leaves.apply(at).getClass().getSimpleName() == "MonotonicallyIncreasingID"
        for leaves in all_leaves
        for at in range(leaves.size())
    )


def stateful_node(plan: str) -> str:
    """Return the first node of a physical plan, as text, that has a state in Spark's store, or "".

    By the state's place, which each such node shows, so that nodes of later releases are found.
    """
    found = _STATEFUL_NODE.search(plan)
    return found[1] if found else ""


def stateful_upstream(operator: str) -> ConfigError:
    """Return the error for a stateful operator of Spark's before ours: it could not follow a replay."""
    return ConfigError(
        f"a stateful Spark operator is upstream: operator={operator}",
        hint="do it inside the processor, or write it to a stream of its own first",
    )


def plan_nodes(frame: DataFrame) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each node of a frame's analysed plan, with the nodes right below it."""
    java: Any = frame._jdf  # noqa: SLF001 - plans are the JVM's
    pending = [java.queryExecution().analyzed()]
    while pending:
        node = pending.pop()
        children = node.children()
        below = [children.apply(index) for index in range(children.size())]
        yield node, below
        pending += below


def check_repeatable(frame: DataFrame) -> None:
    """Refuse what gives other rows each time, between two operators: a replay has to give the same.

    Before the first operator Spark itself gives a replay the time of the batch.

    Raises:
        ConfigError: The plan has a random function, a sample, a function that is declared not
            deterministic, or one of the current time or session.
    """
    java: Any = frame._jdf  # noqa: SLF001 - plans are the JVM's
    plan = java.queryExecution().analyzed()
    jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if (
        not plan.deterministic()
        or plan.containsPattern(patterns.CURRENT_LIKE())
        or any(node.nodeName() == "Sample" for node, _ in plan_nodes(frame))
    ):
        raise ConfigError(
            "the steps between two stateful operators give other rows each time they run",
            hint="take random functions, samples and the current time out, or move them before the first"
            " operator; a processor gets the time of the batch from timerValues",
        )
