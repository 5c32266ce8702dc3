"""What an offsets file of Spark says of the topics that a query reads."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import commit_record

from statekeep.checkpoint.checkpoints import CheckpointId, CheckpointV2, SystemStreamPartition
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.spark.driver.commit_records import (
    by_task,
    commit_offsets,
    stands_apart,
    starting_offsets,
    topic_offsets,
)

CLICKS = [SystemStreamPartition("kafka", "page.clicks", n) for n in range(3)]
VIEWS = SystemStreamPartition("kafka", "views", 0)
BATCH = SystemStreamPartition("spark", "job.of.mine", 0)
TOPICS = st.dictionaries(
    st.text("ab.-_", min_size=1, max_size=6),
    st.dictionaries(st.integers(0, 20), st.integers(0, 1 << 40), min_size=1, max_size=4),
    max_size=4,
)


def offsets_file(*sources: str) -> str:
    metadata = '{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{"spark.sql.shuffle":"4"}}'
    return "\n".join(["v1", metadata, *sources])


def test_ends_of_topics_become_the_last_offsets_read() -> None:
    text = offsets_file('{"page.clicks":{"0":5,"1":0,"2":17}}', "0", '{"views":{"0":9}}')
    assert topic_offsets(text) == {
        CLICKS[0]: "4",
        CLICKS[1]: "-1",
        CLICKS[2]: "16",
        VIEWS: "8",
    }


def test_one_source_of_several_topics_has_them_all() -> None:
    text = offsets_file('{"page.clicks":{"0":5},"views":{"0":9}}')
    assert topic_offsets(text) == {CLICKS[0]: "4", VIEWS: "8"}


def test_of_a_topic_that_is_read_twice_the_lower_offset_counts() -> None:
    text = offsets_file('{"views":{"0":9}}', '{"views":{"0":7}}')
    assert topic_offsets(text) == {VIEWS: "6"}
    assert stands_apart(text) == VIEWS


def test_sources_that_have_read_a_topic_equally_far_stand_together() -> None:
    assert stands_apart(offsets_file('{"views":{"0":9}}', '{"views":{"0":9}}')) is None


@pytest.mark.parametrize(
    "line",
    [
        "-",
        "0",
        "",
        '{"logOffset":3}',
        '{"a":{"b":1}}',
        '{"a":{"0":"1"}}',
        "[]",
        '"text"',
        '{"offset":4,"runTimeMs":5}',
        "of a form that is not JSON",
        '{"views":',
    ],
)
def test_a_source_of_another_kind_has_no_offsets_by_partition(line: str) -> None:
    assert topic_offsets(offsets_file(line)) == {}
    assert topic_offsets(offsets_file(line, '{"views":{"0":9}}')) == {VIEWS: "8"}


@settings(deadline=None)
@given(TOPICS, st.integers(1, 7))
def test_a_query_that_starts_from_a_commit_begins_where_it_ended(
    topics: dict[str, dict[int, int]], partitions: int
) -> None:
    ends = {topic: {str(p): end for p, end in by.items()} for topic, by in topics.items()}
    shares = by_task(topic_offsets(offsets_file(json.dumps(ends))), partitions)
    assert shares.keys() == set(range(partitions))
    checkpoints = {
        f"Partition {task}": msgspec.Raw(
            encode_checkpoint_v2(CheckpointV2(CheckpointId(7, 1), {BATCH: "3", **share}, {}))
        )
        for task, share in shares.items()
    }
    commit = msgspec.structs.replace(commit_record(1, 3), checkpoints=checkpoints)
    found = commit_offsets(commit)
    assert len(found) == sum(map(len, shares.values()))
    assert json.loads(starting_offsets(found)) == ends
