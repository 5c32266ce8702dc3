"""A query whose processor declares its state anew."""

import pytest
from conftest import Stream, events_of, lose_directory
from processors import Narrow, Wider

from statekeep.errors import StateSchemaError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_query_goes_on_with_a_wider_state_and_not_with_the_narrow_one_again(
    stream: Stream,
) -> None:
    stream.add_batches(2, rows=60)
    stream.start(Narrow()).awaitTermination()
    stream.add_batches(1, rows=20)
    # What the old code has committed is restored and read by the new one.
    lose_directory(stream.local_dir)
    query = stream.start(Wider())
    query.awaitTermination()
    assert stream.received() == _expected(stream)
    assert events_of(query, "undeclared-state") == [{"variables": "seen"}]

    # Found at the start: no row has to come, and the disk may be lost or kept.
    words = r"operator=main variable=count field=n stored=decimal\(20,0\) declared=int"
    with pytest.raises(StateSchemaError, match=words):
        stream.start(Narrow())
    lose_directory(stream.local_dir)
    with pytest.raises(StateSchemaError, match=words):
        stream.start(Narrow())
    stream.add_batches(1, rows=20)
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2]
    stream.start(Wider()).awaitTermination()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == _expected(stream)


def _expected(stream: Stream) -> dict[str, tuple[int, int]]:
    return stream.expected(len(list((stream.root / "in").iterdir())))
