"""Random queries on our runtime, stopped and broken in the middle, and on Spark's own operator.

Each seed draws rows or frames, a time mode, one operator or two in a row, initial state, batches and
faults. The rows of each batch have to be equal, and the state of each operator at the end, timers and
time to live included. ``EQUIVALENCE_SEEDS=100-200`` runs other seeds.
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import lose_directory
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from random_processor import ORDERS, OUTPUT, TTLS_MS, Obedient, ObedientOfFrames

import statekeep as sk

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "1",
}
_FIRST, _, _LAST = os.environ.get("EQUIVALENCE_SEEDS", "4-6").partition("-")
SEEDS = range(int(_FIRST), int(_LAST or _FIRST) + 1)


class Case:
    """What a seed draws."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.time_mode = ("None", "ProcessingTime", "EventTime")[seed % 3]
        self.is_pandas = rng.random() < 0.4
        self.keys = [None, *"abcd"][: rng.randint(2, 5)]
        self.begin = [
            (rng.choice(self.keys), rng.randint(1, 20)) for _ in range(rng.choice([0, 4]))
        ]
        self.batches = [self._batch(rng, number) for number in range(rng.randint(2, 3))]
        self.faults = {
            number: rng.choice(["stop", "lose", "crash", "lose and crash"])
            for number in range(len(self.batches))
            if rng.random() < 0.6
        }
        # A generator of its own: the rest of a seed stays as it was.
        rng = random.Random(f"operators-{seed}")
        self.modes = [self.time_mode]
        if rng.random() < 0.5:
            self.modes.append(rng.choice(["None", self.time_mode]))

    @property
    def is_event_time_passed_on(self) -> bool:
        """Whether the second operator goes by the event time of the first one's rows."""
        return self.modes[1:] == ["EventTime"]

    def _batch(self, rng: random.Random, number: int) -> list[tuple[Any, ...]]:
        now = 10 * number
        return [
            (
                rng.choice(self.keys),
                now + rng.randint(-5, 9),
                rng.randint(1, 50),
                rng.choice(ORDERS),
            )
            for _ in range(rng.randint(1, 12))
        ]


class DrawnCrashError(Exception):
    """The end of a driver, as far as its query can tell."""


class Query:
    """One case on one of the two operators."""

    def __init__(self, spark: SparkSession, root: Path, case: Case, *, is_ours: bool) -> None:
        self._spark, self._root, self._case, self._is_ours = spark, root, case, is_ours
        self._faults = dict(case.faults) if is_ours else {}
        self.rows: dict[int, list[tuple[Any, ...]]] = {}
        self.settings = {
            "job.name": root.name,
            "job.logged.store.base.dir": str(root / "local"),
            "stores.backup.factories": "blob",
            "blob.store.uri": (root / "backups").as_uri(),
            "task.commit.ms": 3_600_000,
            "task.replay.on.divergence": "error",
        }

    def run(self) -> None:
        # A start for each batch: by processing time, Spark never ends a query with availableNow.
        for number, batch in enumerate(self._case.batches):
            self._write(number, batch)
            fault = self._faults.get(number, "")
            try:
                self._once()
            except StreamingQueryException as exc:
                assert "crashed as drawn" in str(exc), exc  # noqa: PT017 - any other is a failure
                self._faults.pop(number)
                self._once()
            if fault == "lose":
                lose_directory(self._root / "local")

    def _once(self) -> None:
        self._started().awaitTermination()

    def _started(self) -> Any:
        case = self._case
        reader = self._spark.readStream.schema("key string, t timestamp, v long, op string")
        frame = reader.json(str(self._root / "in"))
        if case.time_mode == "EventTime":
            frame = frame.withWatermark("t", "4 seconds")
        begin = None
        if case.begin:
            # Of several partitions, the rows of a key come in the order in which they are fetched.
            rows = self._spark.createDataFrame(case.begin, "key string, v long").coalesce(1)
            begin = rows.groupBy("key")
        column = "at" if case.is_event_time_passed_on else ""
        output = self._operator(frame, case.modes[0], begin, column)
        for mode in case.modes[1:]:
            output = self._operator(_orders_of(output), mode, None, column)
        writer = output.writeStream.foreachBatch(self._sink).outputMode(self._output_mode)
        writer = writer.option("checkpointLocation", str(self._root / "checkpoint"))
        return writer.trigger(once=True).start()

    @property
    def _output_mode(self) -> str:
        return "append" if self._case.is_event_time_passed_on else "update"

    def _operator(self, frame: Any, time_mode: str, begin: Any, column: str) -> Any:
        data = frame.groupBy("key")
        if self._is_ours:
            data = sk.grouped(data, self.settings)
        kind = ObedientOfFrames if self._case.is_pandas else Obedient
        call = "transformWithStateInPandas" if self._case.is_pandas else "transformWithState"
        return getattr(data, call)(
            kind(time_mode), OUTPUT, self._output_mode, time_mode, begin, eventTimeColumnName=column
        )

    def _sink(self, frame: DataFrame, batch: int) -> None:
        rows = sorted((str(row.key), row.what, row.text, str(row.at)) for row in frame.collect())
        number = len(list((self._root / "in").iterdir())) - 1
        fault = self._faults.get(number, "")
        if "crash" in fault:
            if fault == "lose and crash":
                lose_directory(self._root / "local")
            raise DrawnCrashError("crashed as drawn")
        if rows:
            assert self.rows.setdefault(batch, rows) == rows

    def _write(self, number: int, batch: list[tuple[Any, ...]]) -> None:
        (self._root / "in").mkdir(exist_ok=True, parents=True)
        lines = [
            json.dumps(
                {"key": key, "t": f"2024-01-01T00:01:{t:02}Z" if t >= 0 else f"2024-01-01T00:00:{60 + t}Z",
                 "v": v, "op": op}
            )
            for key, t, v, op in batch
        ]  # fmt: skip
        partial = self._root / "partial"
        partial.write_text("\n".join(lines))
        os.utime(partial, (1_700_000_000 + number,) * 2)
        partial.rename(self._root / "in" / f"{number:03}.json")

    def state(self) -> dict[tuple[int, str], list[str]]:
        """The rows of each variable and of the timers, by operator and name, as text."""
        return {
            (number, name): self._read(number, name)
            for number, mode in enumerate(self._case.modes)
            for name in self._names(mode)
        }

    def _names(self, time_mode: str) -> list[str]:
        names = ["value", "list", "map"]
        if time_mode != "None":
            names.append(_TIMERS)
        if time_mode == "ProcessingTime":
            # Of what has ended, each of the two removes some.
            names += [f"{kind}{max(TTLS_MS)}" for kind in ("value", "list", "map")]
        return names

    def _read(self, operator: int, variable: str) -> list[str]:
        is_timers = variable == _TIMERS
        if self._is_ours:
            name = None if is_timers else variable
            named = ("main", "operator-2")[operator]
            table = sk.read_state(self.settings, name, timers=is_timers, operator=named)
            rows = table.to_pylist()
        else:
            reader = self._spark.read.format("statestore")
            reader = reader.option("path", str(self._root / "checkpoint"))
            # Spark counts from the last operator.
            reader = reader.option("operatorId", len(self._case.modes) - 1 - operator)
            if is_timers:
                reader = reader.option("readRegisteredTimers", "true")
            else:
                reader = reader.option("stateVarName", variable)
            rows = [row.asDict(recursive=True) for row in reader.load().collect()]
        for row in rows:
            row.pop("partition_id")
            row.pop("list_position", None)
            if not is_timers:
                # The ends of values are those of batches that ran at other times.
                row.pop("expiration_timestamp_ms", None)
                row.update(
                    {name: part["value"] for name, part in row.items() if "ttlExpirationMs" in part}
                )
        return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


_TIMERS = "timers"


def _orders_of(output: Any) -> Any:
    """Return rows for another operator, each made of a row that the first one puts out."""

    def drawn(count: int, *columns: str) -> Any:
        return F.crc32(F.concat_ws(" ", *columns).cast("binary")) % count

    return output.select(
        F.concat(F.lit("k"), drawn(3, "what")).alias("key"),
        F.col("at"),
        (drawn(50, "text") + 1).alias("v"),
        F.element_at(
            F.array(*map(F.lit, ORDERS)), (drawn(len(ORDERS), "what", "text") + 1).cast("int")
        ).alias("op"),
    )


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.set(name, str(old))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_query_gives_rows_and_state_of_spark(
    session: SparkSession, tmp_path: Path, seed: int
) -> None:
    case = Case(seed)
    ours, spark = (
        Query(session, tmp_path / ("ours" if is_ours else "spark"), case, is_ours=is_ours)
        for is_ours in (True, False)
    )
    ours.run()
    spark.run()
    assert list(ours.rows.values()) == list(spark.rows.values()), vars(case)
    held, expected = ours.state(), spark.state()
    differing = [(name, held[name], rows) for name, rows in expected.items() if held[name] != rows]
    assert not differing, vars(case)
