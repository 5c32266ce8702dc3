"""What may stand behind a stateful operator, by the nodes of a plan; Spark's own plans are in `tests/spark`."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from statekeep.errors import ConfigError
from statekeep.spark.plan import check_by_batch


class Children(list[Any]):
    """A sequence of Scala."""

    def size(self) -> int:
        return len(self)

    def apply(self, index: int) -> Any:
        return self[index]


def node(name: str, *below: Any) -> Any:
    """A node of a streaming plan."""
    return SimpleNamespace(
        nodeName=lambda: name,
        children=lambda: Children(below),
        isStreaming=lambda: True,
        deterministic=lambda: True,
    )


def frame(names: Sequence[str]) -> Any:
    """A frame whose plan has these nodes, from the top, over a stream."""
    plan = node("LogicalRDD")
    for name in reversed(names):
        plan = node(name, plan)
    execution = SimpleNamespace(analyzed=lambda: plan)
    return SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))


def test_a_watermark_of_its_own_is_refused_behind_an_operator() -> None:
    """All operators have the watermark of the input: what this one delays would be dropped as late."""
    with pytest.raises(ConfigError, match="withWatermark"):
        check_by_batch(frame(["Project", "EventTimeWatermark", "Filter"]))


def test_what_a_batch_gives_alone_is_taken() -> None:
    check_by_batch(frame(["Project", "Filter"]))
