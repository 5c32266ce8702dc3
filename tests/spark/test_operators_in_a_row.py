"""Two stateful operators of ours in one query, and beside two of Spark's own in the same session."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chained_processors import FIRST, SECOND, Counts, Named, Other, Totals
from conftest import PARTITIONS, events_of, lose_directory
from event_files import PLAIN_SETTINGS, EventFiles, Group, Rows
from pages_kit import block
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

import statekeep as sk
from statekeep.errors import ConfigError, StateSchemaError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]

SHUFFLE = "spark.sql.shuffle.partitions"
BATCHES: tuple[Rows, ...] = (
    [("a", 10), ("b", 12), ("c", 11), ("a", 14)],
    [("a", 30), ("d", 31), ("b", 20)],
    [("e", 33), ("f", 40), ("a", 34), ("late", 5)],
    [("b", 60), ("c", 61)],
)
"""With a delay of 3 seconds, the watermarks are 0, 11, 28, 37, and in a last batch without rows 58."""


@dataclass
class Build:
    """The two operators, with something of the user's in between."""

    modes: Sequence[str] = ("EventTime", "EventTime")
    column: str = "at"
    watermark: str | None = "3 seconds"
    output_mode: str = "Append"
    between: Callable[[Any], Any] = lambda frame: frame.where("n <> 3")

    def __call__(self, rows: DataFrame, group: Group) -> Any:
        frame = rows if self.watermark is None else rows.withWatermark("t", self.watermark)
        first = group(frame.groupBy("key")).transformWithState(
            Counts(self.modes[0]),
            FIRST,
            self.output_mode,
            self.modes[0],
            eventTimeColumnName=self.column,
        )
        halves = self.between(first).withColumn("half", (F.ascii("key") % 2).cast("long"))
        return group(halves.groupBy("half")).transformWithState(
            Totals(self.modes[1]),
            SECOND,
            self.output_mode,
            self.modes[1],
            eventTimeColumnName=self.column,
        )


Make = Callable[..., EventFiles]


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Iterator[Make]:
    def make_one(build: Build, *, is_ours: bool = True, name: str = "") -> EventFiles:
        spark.conf.set(SHUFFLE, before[SHUFFLE] if is_ours else "1")
        name = name or ("ours" if is_ours else "spark")
        return EventFiles(spark, tmp_path / name, build, is_ours)

    before = {name: str(spark.conf.get(name)) for name in PLAIN_SETTINGS}
    for name, value in PLAIN_SETTINGS.items():
        spark.conf.set(name, value)
    yield make_one
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(Build(), marks=pytest.mark.long),
        Build(("None", "EventTime")),
        Build(("EventTime", "None"), column="", output_mode="Update"),
        Build(("None", "None"), column="", watermark=None),
    ],
    ids=["event time", "late in the second", "early in the first", "no time"],
)
def test_rows_of_each_batch_are_as_on_spark(make: Make, build: Build) -> None:
    is_dropping = build.modes[0] == "EventTime" or not build.column
    files = [[row for row in rows if row[0] != "late" or is_dropping] for rows in BATCHES]
    ours, on_spark = (make(build, is_ours=is_ours) for is_ours in (True, False))
    queries = [stream.run(*files) for stream in (ours, on_spark)]
    assert [len(query.lastProgress["stateOperators"]) for query in queries] == [2, 2]
    assert ours.batches == on_spark.batches
    assert ours.metadata == on_spark.metadata
    if build.modes[1] == "EventTime":
        assert {what[:2] for rows in ours.batches.values() for *_, what in rows} >= {"at"}


@pytest.mark.long
def test_no_watermark_reaches_an_operator_behind_one_in_processing_time(make: Make) -> None:
    """So its timers never fire and nothing is late in it, as on Spark."""
    build = Build(("ProcessingTime", "EventTime"))
    files = [[row for row in rows if row[0] != "late"] for rows in BATCHES]
    ours, on_spark = (make(build, is_ours=is_ours) for is_ours in (True, False))
    for stream in (ours, on_spark):
        for rows in files:
            stream.add(rows)
            # By processing time Spark never ends a query with availableNow.
            stream.start(once=True).awaitTermination()
    assert list(ours.batches.values()) == list(on_spark.batches.values())
    said = [what for rows in ours.batches.values() for *_, what in rows]
    assert len(said) > 4
    assert all(what.endswith(" rows") for what in said)


def lose(stream: EventFiles, tasks: Sequence[int]) -> None:
    """Remove what the local disk has of some tasks; one without keys has nothing."""
    found = {
        int(path.name.removeprefix("Partition_")): path
        for path in (stream.root / "local").glob("*/main/Partition*")
    }
    for task in found.keys() & set(tasks):
        lose_directory(found[task])


EVERYONE = range(2 * PARTITIONS)
FIRST_TASKS, SECOND_TASKS = EVERYONE[:PARTITIONS], EVERYONE[PARTITIONS:]


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(EVERYONE, id="all"),
        pytest.param(FIRST_TASKS, id="first", marks=pytest.mark.long),
        pytest.param(SECOND_TASKS, id="second", marks=pytest.mark.long),
        pytest.param((), id="none", marks=pytest.mark.long),
    ],
)
def test_what_a_crash_has_lost_is_recovered_in_both_operators(
    make: Make, lost: Sequence[int]
) -> None:
    """What the first run has made is committed; the crash is in the third batch of the second run."""
    whole, stream = make(Build(), name="whole"), make(Build())
    for files in (BATCHES[:1], BATCHES[1:]):
        whole.run(*files)

    def crash(batch: int) -> None:
        if batch == 4 and not (stream.root / "crashed").exists():
            (stream.root / "crashed").touch()
            lose(stream, lost)
            raise RuntimeError("crashed as planned")

    stream.on_batch = crash
    stream.run(*BATCHES[:1])
    stream.settings = {"task.commit.ms": 3_600_000}
    with pytest.raises(StreamingQueryException, match="crashed as planned"):
        stream.run(*BATCHES[1:])
    query = stream.start()
    query.awaitTermination()
    assert stream.batches == whole.batches
    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == ([2, 3] if lost else [])
    assert [state_of(stream, n) for n in (0, 1)] == [state_of(whole, n) for n in (0, 1)]


@pytest.mark.parametrize("lost", [FIRST_TASKS, SECOND_TASKS], ids=["first", "second"])
def test_what_a_running_query_loses_is_recovered_in_both_operators(
    make: Make, lost: Sequence[int]
) -> None:
    whole, stream = make(Build(), name="whole"), make(Build())
    whole.run(*BATCHES)
    stream.settings = {"task.commit.ms": 3_600_000}

    def lose_once(batch: int) -> None:
        if batch == 2:
            lose(stream, lost)

    stream.on_batch = lose_once
    query = stream.run(*BATCHES)
    assert stream.batches == whole.batches
    assert [event for event in events_of(query, "recovery") if event["replayed"]]
    assert [state_of(stream, n) for n in (0, 1)] == [state_of(whole, n) for n in (0, 1)]


def state_of(stream: EventFiles, number: int) -> list[Any]:
    """Return the committed state of an operator."""
    settings = {
        "job.name": stream.root.name,
        "stores.backup.factories": "blob",
        "blob.store.uri": (stream.root / "backups").as_uri(),
    }
    name = ("count", "total")[number]
    table = sk.read_state(settings, name, operator=("main", "operator-2")[number])
    assert table.num_rows
    return sorted(map(str, table.drop_columns("partition_id").to_pylist()))


def test_a_variable_of_one_operator_is_in_a_store_of_its_own(make: Make) -> None:
    whole, stream = make(Build(), name="whole"), make(Build())
    for files in (BATCHES[:2], BATCHES[2:]):
        whole.run(*files)
    stream.settings = {"state.variables.operator-2.total.store": "large"}
    stream.run(*BATCHES[:2])
    lose(stream, EVERYONE)
    stream.run(*BATCHES[2:])
    assert stream.batches == whole.batches
    assert [state_of(stream, n) for n in (0, 1)] == [state_of(whole, n) for n in (0, 1)]
    stream.settings = {"state.variables.main.total.store": "large"}
    with pytest.raises(StateSchemaError, match="variable=total stored=large configured=state"):
        stream.start()


def test_a_key_is_read_in_its_operator(make: Make) -> None:
    stream = make(Build())
    stream.run(*BATCHES[:1])
    settings = {
        "job.name": "ours",
        "stores.backup.factories": "blob",
        "blob.store.uri": (stream.root / "backups").as_uri(),
    }
    for operator, name, key in (("main", "count", "a"), ("operator-2", "total", 1)):
        (row,) = sk.read_state(settings, name, operator=operator, key=key).to_pylist()
        assert list(row["key"].values()) == [key]
    with pytest.raises(ConfigError, match="operators=main,operator-2"):
        sk.read_state(settings, "count")
    with pytest.raises(ConfigError, match="variables=total"):
        sk.read_state(settings, "count", operator="operator-2")


def test_another_number_of_operators_is_refused(make: Make) -> None:
    stream = make(Build())
    stream.run(*BATCHES[:1])

    def one(rows: DataFrame, group: Group) -> Any:
        return group(rows.withWatermark("t", "3 seconds").groupBy("key")).transformWithState(
            Counts("EventTime"), FIRST, "Append", "EventTime"
        )

    stream.build = one
    with pytest.raises(ConfigError, match="go back to the former number of stateful operators"):
        stream.start()


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (lambda frame: frame.withColumn("x", F.rand()), "give other rows each time"),
        (lambda frame: frame.withColumn("x", F.current_timestamp()), "give other rows each time"),
        (
            lambda frame: frame.transform(
                lambda rows: rows.join(
                    rows.sparkSession.range(3).sample(0.5), F.col("id") == F.col("n")
                )
            ),
            "give other rows each time",
        ),
    ],
    ids=["random", "time", "sample of a static frame"],
)
def test_what_a_replay_cannot_repeat_is_refused_between_operators(
    spark: SparkSession, between: Callable[[Any], Any], words: str
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("string(value) key", "timestamp t")
    with pytest.raises(ConfigError, match=words):
        Build(between=between)(rows, sk.grouped)


def test_operators_that_were_swapped_are_refused(make: Make) -> None:
    def build(*names: str) -> Callable[[DataFrame, Group], Any]:
        def both(rows: DataFrame, group: Group) -> Any:
            frame: Any = rows
            for name in names:
                frame = group(frame.groupBy("key")).transformWithState(
                    Named(name), "key string, n long", "Update", "None"
                )
            return frame

        return both

    stream = make(build("first", "second"))
    stream.run(*BATCHES[:1])
    stream.build = build("second", "first")
    with pytest.raises(
        ConfigError, match="seem to be swapped: operator=main stored=first"
    ) as error:
        stream.start()
    assert "order that the job began with" in str(error.value)
    stream.build = build("first", "second")
    stream.run(*BATCHES[1:2])
    assert [max(n for _, n in rows) for rows in stream.batches.values()] == [1, 2]


def test_operators_with_equal_variables_are_known_by_their_classes(make: Make) -> None:
    def build(*classes: type[Named]) -> Callable[[DataFrame, Group], Any]:
        def both(rows: DataFrame, group: Group) -> Any:
            frame: Any = rows
            for each in classes:
                frame = group(frame.groupBy("key")).transformWithState(
                    each("n"), "key string, n long", "Update", "None"
                )
            return frame

        return both

    stream = make(build(Named, Other))
    stream.run(*BATCHES[:1])
    stream.build = build(Other, Named)
    with pytest.raises(ConfigError, match="in another order: before=Named,Other now=Other,Named"):
        stream.start()
    stream.build = build(Named, Other)
    stream.run(*BATCHES[1:2])
    assert [max(n for _, n in rows) for rows in stream.batches.values()] == [1, 2]


WHOLE_STREAM: Mapping[str, tuple[str, Callable[[Any, DataFrame], Any]]] = {
    "count": ("an aggregate", lambda frame, _: frame.select(F.count("*").alias("n"))),
    "window": (
        "a window function",
        lambda frame, _: frame.withColumn("r", F.row_number().over(Window.orderBy("n"))),
    ),
    "right": ("how=RightOuter", lambda frame, fixed: frame.join(fixed, "key", "right")),
    "full": ("how=FullOuter", lambda frame, fixed: frame.join(fixed, "key", "full")),
    "left behind": (
        "how=LeftOuter",
        lambda frame, fixed: frame.transform(lambda rows: fixed.join(rows, "key", "left")),
    ),
    "itself": (
        "the stream with itself",
        lambda frame, _: frame.transform(lambda rows: rows.join(rows.select("key"), "key")),
    ),
    "groups": (
        "an aggregate",
        lambda frame, _: frame.transform(lambda rows: rows.groupBy("key").count()),
    ),
    "union": (
        "a union with a static frame",
        lambda frame, fixed: frame.select("key").transform(lambda r: r.union(fixed.select("key"))),
    ),
    "limit": ("limit", lambda frame, _: frame.transform(lambda rows: rows.limit(2))),
    "distinct": (
        "distinct|dropDuplicates",
        lambda frame, _: frame.transform(lambda r: r.distinct()),
    ),
    "operator": (
        "transformWithState of Spark's own",
        lambda frame, _: frame.transform(
            lambda rows: rows.groupBy("key").transformWithState(
                Named("c"), "key string, n long", "Append", "None"
            )
        ),
    ),
    "watermark": (
        "withWatermark",
        lambda frame, _: frame.transform(lambda rows: rows.withWatermark("at", "1 day")),
    ),
    "sample": ("a sample", lambda frame, _: frame.transform(lambda rows: rows.sample(0.5))),
    "split": (
        "a sample",
        lambda frame, _: frame.transform(lambda rows: rows.randomSplit([0.5, 0.5])[0]),
    ),
    "sort": ("a sort", lambda frame, _: frame.transform(lambda rows: rows.sort("n"))),
    "increasing": (
        "monotonically_increasing_id",
        lambda frame, _: frame.withColumn("x", F.monotonically_increasing_id() + 1),
    ),
}


@pytest.mark.parametrize(("words", "step"), WHOLE_STREAM.values(), ids=WHOLE_STREAM)
def test_what_needs_the_whole_stream_is_refused_behind_an_operator(
    spark: SparkSession, words: str, step: Callable[[Any, DataFrame], Any]
) -> None:
    with pytest.raises(ConfigError, match=words):
        step(counted(spark), spark.range(3).selectExpr("string(id) key", "id more"))


def test_what_each_batch_gives_alone_may_follow_an_operator(spark: SparkSession) -> None:
    fixed = spark.range(3).selectExpr("string(id) key").groupBy("key").agg(F.count("*").alias("c"))
    frame = counted(spark)
    for how in ("inner", "left", "left_semi", "left_anti"):
        assert frame.join(fixed, "key", how).columns[:3] == ["key", "at", "n"]
    joined = frame.transform(lambda rows: fixed.join(rows, "key", "right"))
    assert joined.columns == ["key", "c", "at", "n"]
    sorted_rows = frame.transform(lambda rows: rows.join(fixed.sort("c"), "key"))
    assert sorted_rows.sortWithinPartitions("n").withColumn("x", F.rand()).columns[-1] == "x"
    both = frame.transform(lambda rows: rows.union(rows.where("n > 1")))
    assert both.columns == ["key", "at", "n"]


def counted(spark: SparkSession) -> Any:
    """A stream behind an operator."""
    rows = spark.readStream.format("rate").load().selectExpr("string(value) key", "timestamp t")
    return sk.grouped(rows.groupBy("key")).transformWithState(
        Counts("None"), FIRST, "Append", "None"
    )


def test_other_settings_and_other_operators_are_refused(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("string(value) key", "timestamp t")
    build = Build()
    made = iter([{"job.name": "one"}, {"job.name": "other"}])
    with pytest.raises(ConfigError, match="settings differ"):
        build(rows, lambda data: sk.grouped(data, next(made)))
    with pytest.raises(AttributeError, match=r"groupBy\(\.\.\.\)\.count"):
        build(rows, sk.grouped).groupBy("half").count()


def test_the_program_of_the_page_is_taken(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load().withWatermark("timestamp", "3 seconds")
    clicks = rate.selectExpr("string(value) user", "timestamp t")
    names: dict[str, Any] = {"sk": sk, "clicks": clicks, "settings": {"job.name": "clicks"}}
    names |= {"Visits": lambda: Counts("EventTime"), "Pages": lambda: Totals("None")}
    exec(block("docs/how-to/after-the-operator.md", "Another operator", "python"), names)  # noqa: S102 - of the page
    assert names["pages"].columns == ["page", "n"]
    assert names["visits"].schema["at"].metadata == {"spark.watermarkDelayMs": 3000}
