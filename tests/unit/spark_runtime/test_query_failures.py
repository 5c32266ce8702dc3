"""What is added to the error that a query ends with."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from statekeep.spark.query_run import QueryRun

IN_A_PLAN = "[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost because ..."
IN_A_BATCH = (
    "org.apache.spark.sql.kafka010.KafkaIllegalStateException: "
    "Some data may have been lost because they are not available in Kafka any more;"
)


def run_that_failed(told: str, failure: Exception | None) -> QueryRun:
    """A run whose query has ended with a text of Spark's, and its job with an error."""
    query = SimpleNamespace(exception=lambda: StreamingQueryException(told))
    job = SimpleNamespace(failure=failure, attach=lambda watched: None)
    return QueryRun(cast("Any", query), cast("Any", job))


@pytest.mark.parametrize(
    ("told", "failure"),
    [(IN_A_PLAN, None), (IN_A_BATCH, None), ("batch failed", RuntimeError(IN_A_BATCH))],
    ids=["in a plan", "in a batch", "told by the job alone"],
)
def test_records_that_a_topic_has_lost_come_with_the_ways_out(
    told: str, failure: Exception | None
) -> None:
    found = run_that_failed(told, failure).exception()
    assert found is not None
    assert any("retention.ms of the topic" in note for note in found.__notes__)


def test_any_other_failure_is_left_as_it_is() -> None:
    found = run_that_failed("no such file", None).exception()
    assert found is not None
    assert not getattr(found, "__notes__", [])
