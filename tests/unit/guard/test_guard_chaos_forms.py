"""What the guard level of the crash harness takes for right."""

from collections import Counter

import pytest

from chaos.guard.forms import FORMS, Delivered, Row, files_read

FILES: list[list[Row]] = [[("a", 1), ("b", 2)], [("a", 3)], [("b", 4), ("b", 5)]]
COUNTS: list[Delivered] = [
    Counter([("a", 1), ("b", 1)]),
    Counter([("a", 2)]),
    Counter([("b", 3)]),
]


def test_each_batch_reads_a_file_or_what_a_killed_source_had_logged_too() -> None:
    counts = FORMS["hdfs"]
    assert files_read(counts, FILES, dict(enumerate(COUNTS))) == {0: 1, 1: 2, 2: 3}
    assert files_read(counts, FILES, {0: COUNTS[0], 1: COUNTS[1] + COUNTS[2]}) == {0: 1, 1: 3}
    assert files_read(counts, FILES, {7: COUNTS[2]}, begun=2) == {7: 3}
    assert files_read(counts, FILES, {}) == {}


@pytest.mark.parametrize(
    "batches",
    [
        {0: COUNTS[0], 1: COUNTS[2]},
        {0: COUNTS[0], 1: COUNTS[1], 2: Counter([("b", 4)])},
        {0: COUNTS[0], 1: COUNTS[1], 2: COUNTS[2], 3: COUNTS[2]},
        {0: COUNTS[1]},
    ],
    ids=["left out", "wrong", "twice", "late"],
)
def test_what_no_reading_of_the_files_gives_is_wrong(batches: dict[int, Delivered]) -> None:
    assert files_read(FORMS["hdfs"], FILES, batches) is None


def test_a_join_gives_each_pair_once() -> None:
    pairs: list[Delivered] = [
        Counter([("a", 1, 1), ("b", 2, 2)]),
        Counter([("a", 1, 3), ("a", 3, 1), ("a", 3, 3)]),
    ]
    assert files_read(FORMS["join"], FILES, dict(enumerate(pairs))) == {0: 1, 1: 2}
    one_less = pairs[1] - Counter([("a", 3, 3)])
    assert files_read(FORMS["join"], FILES, {0: pairs[0], 1: one_less}) is None
