"""Jobs on Spark that go on from another one's state: a savepoint's, or with other tasks."""

import datetime as dt
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from conftest import Stream, state_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from typer.testing import CliRunner

from statekeep.cli.app import app
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.key_hash import KeyHasher
from statekeep.spark.placement import routed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

KEY_TYPES: dict[str, Any] = {
    "text": StringType(),
    "bytes": BinaryType(),
    "byte": ByteType(),
    "short": ShortType(),
    "int": IntegerType(),
    "long": LongType(),
    "bool": BooleanType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "local time": TimestampNTZType(),
    "interval": DayTimeIntervalType(),
    "decimal": DecimalType(10, 2),
    "long decimal": DecimalType(38, 6),
    "struct": StructType([StructField("x", StringType()), StructField("y", DoubleType())]),
    "numbers": ArrayType(IntegerType()),
    "texts": ArrayType(ArrayType(StringType())),
}


def random_key(rng: random.Random) -> tuple[Any, ...]:
    """Return a value of each type, now and then null."""

    def text() -> str:
        return "".join(rng.choice("aé漢\0z\U0001f600 ") for _ in range(rng.randint(0, 9)))

    def double() -> float:
        return rng.choice([0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, 3.0e10])

    def micros(limit: int) -> dt.timedelta:
        return dt.timedelta(microseconds=rng.randint(-limit, limit))

    values = (
        text(),
        rng.randbytes(rng.randint(0, 9)),
        rng.randint(-(2**7), 2**7 - 1),
        rng.randint(-(2**15), 2**15 - 1),
        rng.randint(-(2**31), 2**31 - 1),
        rng.randint(-(2**63), 2**63 - 1),
        rng.random() < 0.5,
        double(),
        double(),
        dt.date(1969, 1, 1) + dt.timedelta(days=rng.randint(-9999, 9999)),
        dt.datetime(1980, 1, 1, tzinfo=dt.UTC) + micros(10**14),
        dt.datetime(1980, 1, 1) + micros(10**15),  # noqa: DTZ001 - a local time
        micros(10**12),
        Decimal(rng.randint(-(10**10) + 1, 10**10 - 1)).scaleb(-2),
        Decimal(rng.randint(-(10**20), 10**20)).scaleb(-6),
        (text(), double()),
        [rng.choice([None, rng.randint(-9, 9)]) for _ in range(rng.randint(0, 4))],
        [[text() for _ in range(rng.randint(0, 2))], None, []],
    )
    return tuple(None if rng.random() < 0.15 else value for value in values)


def test_a_stored_key_has_the_hash_by_which_spark_routes_it(spark: SparkSession) -> None:
    schema = StructType([StructField(name, kind) for name, kind in KEY_TYPES.items()])
    rng = random.Random(7)
    frame = spark.createDataFrame([random_key(rng) for _ in range(300)], schema).cache()
    for names in [*([name] for name in KEY_TYPES), list(KEY_TYPES)]:
        part = StructType([schema[name] for name in names])
        codec, hasher = KeyCodec(part), KeyHasher(part)
        columns = [f"`{name}`" for name in names]
        rows = frame.select(F.hash(*routed(frame.schema, names)).alias("hash"), *columns).collect()
        for expected, *key in rows:
            data = codec.encode(key)
            assert hasher.hash_front(data + b"behind") == (expected % (1 << 32), len(data)), key


def run_command(stream: Stream, *line: str) -> None:
    given = {"job.name": "counts", **stream.settings}
    settings = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, [*line, *settings], catch_exceptions=False)
    assert result.exit_code == 0


@pytest.fixture
def job(stream: Stream) -> Stream:
    """A job that has processed six batches on four tasks and was stopped."""
    stream.settings = {
        "stores.backup.factories": "blob",
        "blob.store.uri": (stream.root / "backups").as_uri(),
    }
    stream.add_batches(6)
    stream.run()
    return stream


def go_on(stream: Stream, job_name: str, location: Path, **settings: Any) -> None:
    """Start the stream under another name at another checkpoint location, to its end."""
    writer = stream.stateful(
        settings={"job.name": job_name, **{k.replace("__", "."): v for k, v in settings.items()}}
    ).writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(location)).trigger(availableNow=True).start()
    query.awaitTermination()


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_a_job_goes_on_exactly_with_another_number_of_tasks(job: Stream, partitions: int) -> None:
    settings = {"job.name": "counts", **job.settings}
    before = state_of(settings)
    new = job.root / "new-checkpoint"
    run_command(
        job,
        *("rescale", "--partitions", str(partitions), "--as", "rescaled"),
        *("--from-location", str(job.location), "--to-location", str(new)),
    )
    assert state_of(settings | {"job.name": "rescaled"}) == before == job.expected(6)

    job.add_batches(4)
    go_on(job, "rescaled", new, task__count=partitions)
    assert state_of(settings | {"job.name": "rescaled"}) == job.expected(10)
    assert [batch for batch, _ in job.delivered] == list(range(10))
    assert job.received() == job.expected(10)


def test_after_a_rescaling_the_old_job_is_the_way_back(job: Stream) -> None:
    new = job.root / "new-checkpoint"
    run_command(
        job,
        *("rescale", "--partitions", "2", "--as", "rescaled"),
        *("--from-location", str(job.location), "--to-location", str(new)),
    )
    job.add_batches(2)
    go_on(job, "rescaled", new, task__count=2)
    job.run()
    assert state_of({"job.name": "counts", **job.settings}) == job.expected(8)


def test_a_job_that_starts_from_a_savepoint_repeats_what_came_after_it(job: Stream) -> None:
    run_command(job, "savepoint", "create", "v1", "--yes")
    job.add_batches(3)
    job.run()
    new = job.root / "new-checkpoint"
    run_command(
        job,
        *("savepoint", "restore", "v1", "--as", "copy"),
        *("--from-location", str(job.location), "--to-location", str(new)),
    )
    assert state_of({"job.name": "copy", **job.settings}) == job.expected(6)
    job.delivered.clear()
    go_on(job, "copy", new)
    # Spark has listed the files of batches 6 to 8 already: it may take them in fewer batches.
    assert job.delivered[0][0] == 6
    assert job.received() == job.expected(9)
    assert state_of({"job.name": "copy", **job.settings}) == job.expected(9)
    assert state_of({"job.name": "counts", **job.settings}) == job.expected(9)
