"""How tasks are spread over slots, and how a slot is told apart."""

import pytest
from pyspark.sql.types import LongType, StructType

from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.placement import bucket_values, spread


@pytest.mark.parametrize(
    ("tasks", "cores", "slots"),
    [
        (5, 2, [(0, 2, 4), (1, 3)]),
        (2, 8, [(0,), (1,)]),
        (3, 1, [(0, 2), (1,)]),
        (1, 4, [(0,), ()]),
    ],
)
def test_every_task_is_in_one_of_at_least_two_slots(
    tasks: int, cores: int, slots: list[tuple[int, ...]]
) -> None:
    assert spread(tasks, cores) == slots


@pytest.mark.parametrize("count", [2, 3, 16, 200])
def test_the_hash_of_a_bucket_falls_into_its_slot(count: int) -> None:
    schema = StructType().add("bucket", LongType())
    codec, hasher = KeyCodec(schema), KeyHasher(schema)
    buckets = bucket_values(count)
    hashes = [hasher.hash_front(codec.encode([bucket]))[0] for bucket in buckets]
    assert [partition_of_hash(value, count) for value in hashes] == list(range(count))
