"""State of Spark's own is found in the text of a physical plan, whatever its node."""

import pytest

from statekeep.spark.plan import stateful_node

PLAN = """MapInArrow
+- *(2) HashAggregate(keys=[value#3L], functions=[])
   :- {node}, state info [ checkpoint = file:/location/state, runId = 1, opId = 0]
   +- *(1) Project [(value#2L % 4) AS value#3L]
      +- MicroBatchScan[timestamp#1, value#2L]
"""


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("StateStoreSave [value#3L]", "StateStoreSave"),
        ("*(3) StreamingDeduplicate [value#15L]", "StreamingDeduplicate"),
        ("OfALaterRelease", "OfALaterRelease"),
        (
            "!TransformWithStateInPySpark of(id#1L)#2, [id#1L], update",
            "TransformWithStateInPySpark",
        ),
        ("*(1) !FlatMapGroupsInPandasWithState of(key#1)#2", "FlatMapGroupsInPandasWithState"),
    ],
)
def test_the_node_that_shows_where_its_state_is(node: str, found: str) -> None:
    assert stateful_node(PLAN.format(node=node)) == found


def test_a_plan_without_state() -> None:
    plan = PLAN.format(node="Project").replace("state info [ checkpoint = ", "files [")
    assert stateful_node(plan) == ""


def test_state_of_a_frame_that_was_cached_is_none_of_the_stream() -> None:
    """Spark ran it once, as a batch: it has no place."""
    plan = PLAN.format(node="!TransformWithStateInPySpark of(id#1L)#2")
    assert stateful_node(plan.replace("file:/location/state", "")) == ""
