"""State variables in stores of their own: one in two places, a large one in one, a cache in none."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import Stream, events_of, lose_directory, state_of
from processors import OUTPUT_OF_STORES, InStores, InStoresOfExecutors, WithoutStores
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from typer.testing import CliRunner
from typing_extensions import override

import statekeep as sk
from statekeep.cli.app import app
from statekeep.errors import ConfigError, StateSchemaError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]

IN_STORES = {
    "state.variables.seen.store": "large",
    "state.variables.calls.store": "cache",
    "stores.state.backup.factories": "first,second",
    "stores.large.backup.factories": "first",
    "stores.cache.backup.factories": "",
    "job.log.backend": "first",
}

OTHERS = [name for name in IN_STORES if "large" in name or "cache" in name or "variables" in name]
"""What a job with one store does not say."""


@dataclass
class Job(Stream):
    """A stream with a processor of three variables."""

    output: str = OUTPUT_OF_STORES
    calls: dict[int, set[int]] = field(default_factory=dict)
    """``{batch: what the cache said in it}``"""

    @override
    def sink(self, frame: DataFrame, batch: int) -> None:
        self.on_batch(batch)
        rows = frame.collect()
        self.delivered.append((batch, {row.key: (row.n, row.s) for row in rows}))
        self.calls[batch] = {row.calls for row in rows}

    def go_on(
        self,
        batches: int = 1,
        *,
        keys: int = 40,
        processor: StatefulProcessor | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> sk.StatefulStreamingQuery:
        """Process more batches, with other settings from now on."""
        self.settings |= settings or {}
        self.add_batches(batches, keys=keys)
        query = self.start(processor or InStores())
        query.awaitTermination()
        assert [
            event["failures"] for event in events_of(query, "recovery") if event["failures"]
        ] == []
        return query

    def check(self, batches: int) -> None:
        """Compare what was delivered and what is committed with a plain fold over the input."""
        assert [batch for batch, _ in self.delivered] == list(range(batches))
        expected = self.expected(batches)
        assert self.received() == state_of(self.settings) == expected
        assert self.seen() == expected

    def seen(self, backend: str | None = None) -> dict[str, tuple[int, int]]:
        """What the map in the large store adds up to, by key."""
        settings = {"job.name": "counts", **self.settings}
        found: dict[str, tuple[int, int]] = {}
        for row in sk.read_state(settings, "seen", backend=backend).to_pylist():
            key = row["key"]["key"]
            n, s = found.get(key, (0, 0))
            found[key] = (n + 1, s + row["user_map_key"]["v"])
        return found

    def crash_at(
        self, number: int, lost: Sequence[Path], processor: StatefulProcessor | None = None
    ) -> None:
        """Fail in a batch, and lose some directories with it."""

        def crash(batch: int) -> None:
            if batch == number:
                for path in lost:
                    lose_directory(path)
                raise RuntimeError("crashed as planned")

        self.on_batch = crash
        with pytest.raises(StreamingQueryException, match="crashed as planned"):
            self.start(processor or InStores(), {"task.commit.ms": "1h"}).awaitTermination()
        self.on_batch = lambda _: None


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Iterator[Job]:
    places = {
        f"backends.{name}.{key}": value
        for name in ("first", "second")
        for key, value in {"factory": "blob", "uri": (tmp_path / name).as_uri()}.items()
    }
    yield Job(spark, tmp_path, settings=IN_STORES | places)
    for query in spark.streams.active:  # left by a test that failed
        query.stop()


def stores_shown(job: Job) -> dict[str, set[str]]:
    """Return what `statekeep stores show` tells: the backends of each store."""
    given = {"job.name": "counts", **job.settings}
    options = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, ["stores", "show", "--json", *options], catch_exceptions=False)
    found: dict[str, set[str]] = {}
    for task in json.loads(result.stdout)["tasks"]:
        for store in task["parts"]:
            found.setdefault(store["name"], set()).add(store["facts"]["backend"])
    return found


def test_each_store_goes_to_its_own_backends(job: Job) -> None:
    job.go_on(3)
    job.check(3)
    assert job.calls == {0: {0}, 1: {1}, 2: {2}}
    assert stores_shown(job) == {"state": {"first", "second"}, "large": {"first"}}
    with pytest.raises(ConfigError, match="the backend has no such state variable: variable=seen"):
        job.seen("second")
    with pytest.raises(ConfigError, match="is in a cache, which no commit holds"):
        sk.read_state({"job.name": "counts", **job.settings}, "calls")


@pytest.mark.parametrize("lost", [("local",), ()], ids=["lost disk", "kept disk"])
def test_a_crash_loses_nothing_but_the_cache(job: Job, lost: Sequence[str]) -> None:
    """Batches 0 and 1 are committed, 2 and 3 are replayed where they are lost, 4 is the crash's."""
    job.go_on(2)
    job.add_batches(3)
    job.crash_at(4, [job.root / name for name in lost])
    query = job.go_on()
    job.check(6)
    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == ([2, 3] if lost else [])
    assert recovery["diverged"] == 0
    assert job.calls[3] == {1}  # since the start before batch 2
    replayed = len(recovery["replayed"])
    assert (job.calls[4], job.calls[5]) == ({replayed}, {replayed + 1})


@pytest.mark.long
def test_one_store_moves_to_another_backend_and_back(job: Job) -> None:
    """In the steps of docs/how-to/move-state.md; each begins on a new disk."""
    job.go_on(2)
    for steps, (source, target) in enumerate([("first", "second"), ("second", "first")], 1):
        for places in (f"{source},{target}", target):
            lose_directory(job.local_dir)
            # Most tasks have not changed, and must be in the new backend nevertheless.
            job.go_on(1, keys=1, settings={"stores.large.backup.factories": places})
        job.check(2 + 2 * steps)
        assert job.seen(target) == job.expected(2 + 2 * steps)


def test_a_job_gets_another_store(job: Job) -> None:
    """After a clean end, and with most tasks idle since: their image lacks the store."""
    own = {name: job.settings.pop(name) for name in OTHERS}
    job.go_on(2, processor=WithoutStores())
    job.settings |= own
    job.go_on(1, keys=1)
    lose_directory(job.local_dir)
    job.go_on(1)
    assert job.received() == state_of(job.settings) == job.expected(4)
    assert sum(n for n, _ in job.seen().values()) == 2 * 200
    assert stores_shown(job) == {"state": {"first", "second"}, "large": {"first"}}


def test_a_job_gets_another_store_only_once_all_state_is_committed(job: Job) -> None:
    own = {name: job.settings.pop(name) for name in OTHERS}
    job.go_on(2, processor=WithoutStores())
    job.add_batches(2)
    job.crash_at(3, [], WithoutStores())
    with pytest.raises(ConfigError, match=r"cannot change now, .* before=state now=state,large"):
        job.go_on(1, settings=own)
    for name in own:
        del job.settings[name]
    job.go_on(0, processor=WithoutStores())
    job.go_on(1, settings=own)
    assert job.received() == state_of(job.settings) == job.expected(6)
    assert sum(n for n, _ in job.seen().values()) == 200


def test_a_variable_stays_in_its_store_until_it_is_given_up(job: Job) -> None:
    job.go_on(2)
    place = "state.variables.seen.store"
    with pytest.raises(StateSchemaError, match="variable=seen stored=large configured=state"):
        job.go_on(0, settings={place: "state", "state.variables.sene.store": "large"})
    with pytest.raises(ConfigError, match=r"variable=sene variables=.*did you mean 'seen'"):
        job.go_on(0, settings={place: "large"})
    del job.settings["state.variables.sene.store"]
    job.go_on(1)
    job.check(3)

    given_up = {"stores.large.backup.factories": "", "stores.large.restore.factories": ""}
    job.go_on(1, settings=given_up)
    for name in (place, *given_up):
        del job.settings[name]
    job.go_on(1)
    assert job.received() == state_of(job.settings) == job.expected(5)
    assert sum(n for n, _ in job.seen().values()) == 200
    assert stores_shown(job) == {"state": {"first", "second"}}
    with pytest.raises(ConfigError, match="has given up a store of this name: store=large"):
        job.go_on(1, settings={place: "large", "stores.large.backup.factories": "second"})


def test_a_misspelt_variable_is_refused_by_the_first_batch_where_init_fails_on_the_driver(
    job: Job,
) -> None:
    misspelt = "state.variables.sene.store"
    job.settings[misspelt] = "large"
    job.add_batches(1)
    with pytest.raises(
        StreamingQueryException, match=r"variable=sene variables=calls,.*did you mean 'seen'"
    ):
        job.start(InStoresOfExecutors()).awaitTermination()
    assert job.delivered == []
    del job.settings[misspelt]
    job.go_on(1, processor=InStoresOfExecutors())
    job.check(2)
