"""A query whose processor declares its state anew."""

import shutil

import pytest
from conftest import Stream, events_of
from processors import Narrow, Wider
from pyspark.errors import StreamingQueryException

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_query_goes_on_with_a_wider_state_and_not_with_the_narrow_one_again(
    stream: Stream,
) -> None:
    stream.add_batches(2, rows=60)
    stream.start(Narrow()).awaitTermination()
    stream.add_batches(1, rows=20)
    # What the old code has committed is restored and read by the new one.
    shutil.rmtree(stream.local_dir)
    query = stream.start(Wider())
    query.awaitTermination()
    assert stream.received() == _expected(stream)
    assert events_of(query, "undeclared-state") == [{"variables": "seen"}]

    stream.add_batches(1, rows=20)
    with pytest.raises(StreamingQueryException) as caught:
        stream.start(Narrow()).awaitTermination()
    words = "operator=main variable=count field=n stored=decimal(20,0) declared=int"
    assert words in f"{caught.value} {caught.value.__cause__}"
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2]
    stream.start(Wider()).awaitTermination()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == _expected(stream)


def _expected(stream: Stream) -> dict[str, tuple[int, int]]:
    return stream.expected(len(list((stream.root / "in").iterdir())))
