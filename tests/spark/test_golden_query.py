"""A query whose checkpoint location, log and backups an earlier release wrote goes on."""

import pytest
from conftest import Rows, Stream, state_of
from golden_kit import unpack
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

ROWS = 100
"""Of each batch."""


def fold(count: int) -> Rows:
    """What the state is after so many rows."""
    state: Rows = {}
    for number in range(count):
        n, s = state.get(f"key-{number % 7}", (0, 0))
        state[f"key-{number % 7}"] = (n + 1, s + number)
    return state


@pytest.fixture
def query(stream: Stream) -> Stream:
    """A query over a counter that brings one batch a start, without a path in its offsets."""

    def counted() -> DataFrame:
        reader = stream.spark.readStream.format("rate-micro-batch").option("numPartitions", 2)
        rows = reader.option("rowsPerBatch", ROWS).load()
        key = F.concat(F.lit("key-"), F.col("value") % 7)
        return rows.select(key.alias("key"), F.col("value").alias("v"))

    stream.frame = counted  # type: ignore[method-assign]
    stream.settings = {
        "stores.backup.factories": "blob",
        "blob.store.uri": (stream.root / "backups").as_uri(),
        "task.count": 2,
    }
    return stream


def test_a_query_of_an_earlier_release_goes_on_with_the_next_batch(query: Stream) -> None:
    unpack("queries/query-1.tar.gz", query.root)
    before = [int(path.name) for path in (query.location / "commits").glob("[0-9]*")]
    query.run()
    assert [batch for batch, _ in query.delivered] == [max(before) + 1]
    expected = fold(ROWS * (max(before) + 2))
    assert query.received() == expected
    assert state_of(query.settings) == expected
