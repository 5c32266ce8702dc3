"""The state of whole jobs, without Spark: every task, one key, at a commit, and what is wrong."""

import asyncio
import shutil
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest
from golden_kit import unpack
from spark_job_kit import CONTENT, IN_STORES, ONE_STORE, TASKS, make_job, settings, task_of
from typing_extensions import override

import statekeep as sk
from statekeep.checkpoint.log_view import LogView
from statekeep.errors import ConfigError, RestoreFailedError
from statekeep.restore.manager import TaskRestorer
from statekeep.spark.state.plan import plan_state
from statekeep.spark.state.restored import RestoredTask

ROWS = 100
"""Of each batch of the golden query; it has three, and retains the commits of the last two."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A job of four tasks with one commit."""
    directory = tmp_path_factory.mktemp("job")
    asyncio.run(make_job(directory))
    return settings(directory)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A job that an earlier release wrote, with the commits of two batches."""
    directory = tmp_path_factory.mktemp("golden")
    unpack("queries/query-1.tar.gz", directory)
    return {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": (directory / "backups").as_uri(),
    }


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is restored from now on: task and version."""
    seen: list[tuple[str, str]] = []

    class Watched(TaskRestorer):
        @override
        async def restore(self, candidates: Any, *args: Any) -> Any:
            outcome = await super().restore(candidates, *args)
            if outcome.bytes_fetched:
                seen.append((self._task.task_name, str(candidates[0].version)))
            return outcome

    monkeypatch.setattr("statekeep.inspection.task_restore.TaskRestorer", Watched)
    return seen


def test_state_is_read_inside_a_running_event_loop_too(job: dict[str, str]) -> None:
    """As in a notebook."""

    async def cell() -> Any:
        return sk.read_state(job, "count")

    assert counts(asyncio.run(cell())) == CONTENT


def test_an_error_of_reading_comes_without_one_of_the_event_loop(job: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no such state variable") as raised:
        sk.read_state(job, "cuont")
    assert "event loop" not in "".join(traceback.format_exception(raised.value))


def counts(rows: Any) -> dict[str, int]:
    return {row["key"]["user"]: row["value"]["n"] for row in rows.to_pylist()}


def fold(batches: int) -> dict[str, tuple[int, int]]:
    numbers = range(ROWS * batches)
    parts = {f"key-{rest}": [n for n in numbers if n % 7 == rest] for rest in range(7)}
    return {key: (len(part), sum(part)) for key, part in parts.items()}


def test_each_task_is_restored_once(job: dict[str, str], restored: list[tuple[str, str]]) -> None:
    assert counts(sk.read_state(job, "count")) == CONTENT
    assert sorted(task for task, _ in restored) == [f"Partition {n}" for n in range(TASKS)]


def test_only_the_store_of_the_variable_is_restored(
    tmp_path: Path, restored: list[tuple[str, str]]
) -> None:
    """Where settings do not say which one has it, one task tells."""
    asyncio.run(make_job(tmp_path, IN_STORES))
    job = settings(tmp_path)
    placed = {"state.variables.seen.store": "large"}
    for given, variable, restores in [
        (job, "count", TASKS),
        (job | placed, "seen", TASKS),
        (job, "seen", TASKS + 1),
    ]:
        restored.clear()
        assert counts(sk.read_state(given, variable)) == CONTENT
        assert len(restored) == restores
    with pytest.raises(ConfigError, match=r"no such state variable: .* variables=count,seen"):
        sk.read_state(job, "sene")
    placed = {"state.variables.sene.store": "cache", "stores.cache.backup.factories": ""}
    with pytest.raises(ConfigError, match="in a cache, which no commit holds: variable=sene"):
        sk.read_state(job | placed, "sene")


def test_one_key_takes_its_own_task_and_the_one_with_the_schema(
    job: dict[str, str], restored: list[tuple[str, str]]
) -> None:
    for user in ("user-7", "user-123"):
        restored.clear()
        rows = sk.read_state(job, "count", key=user)
        assert counts(rows) == {user: CONTENT[user]}
        allowed = {"Partition 0", f"Partition {task_of(user, TASKS)}"}
        assert {task for task, _ in restored} == allowed


@pytest.mark.parametrize("key", ["user-7", ("user-7",), ["user-7"], {"user": "user-7"}])
def test_a_key_may_be_given_in_any_form(job: dict[str, str], key: Any) -> None:
    assert counts(sk.read_state(job, "count", key=key)) == {"user-7": 7}


def test_a_key_without_state_has_no_rows(job: dict[str, str]) -> None:
    assert sk.read_state(job, "count", key="absent").num_rows == 0
    assert sk.read_state(job, "count", key=[None]).num_rows == 0


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (7, r"key=\(7,\) expected=struct<user:string> field=user declared=string found=int"),
        (("a", "b"), "values=2 fields=1"),
        ({"name": "a"}, "missing=user unknown=name"),
    ],
)
def test_a_key_that_does_not_fit_is_an_error(job: dict[str, str], key: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=f"does not fit the grouping key.*{told}.*hint"):
        sk.read_state(job, "count", key=key)


def test_only_the_columns_that_are_asked_for_are_read(job: dict[str, str]) -> None:
    rows = sk.read_state(job, "count", columns=["partition_id", "key"])
    assert rows.column_names == ["partition_id", "key"]
    found = {row["key"]["user"]: row["partition_id"] for row in rows.to_pylist()}
    assert found == {user: task_of(user, TASKS) for user in CONTENT}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"variable": "cuont"}, "variable=cuont variables=count.*did you mean 'count'"),
        ({"variable": "other"}, "variable=other variables=count.*init"),
        ({"variable": "count", "columns": ["Value"]}, "column=Value.*did you mean 'value'"),
        ({"variable": "count", "columns": []}, "no column is named"),
        ({"variable": "count", "operator": "mian"}, "operator=mian.*did you mean 'main'"),
        (
            {"variable": "count", "task": "Partition 20"},
            "task=Partition 20.*did you mean 'Partition [0-3]'",
        ),
        ({"variable": "count", "commit": 99}, "no such commit: commit=99.*checkpoints list"),
        ({"variable": "count", "batch": 99}, "no retained commit is of this batch.*batches=5"),
        ({"variable": "count", "as_of": "2001-01-01"}, "no retained commit is that old.*oldest="),
        ({"variable": "count", "as_of": "yesterday"}, "not a time: found='yesterday'"),
        ({"variable": "count", "batch": 5, "commit": 1}, "named more than once"),
        (
            {"variable": "count", "backend": "far"},
            "backend=far backends=blob.*leave the backend out",
        ),
        (
            {"variable": "count", "backend": "blop"},
            "backend=blop backends=blob.*did you mean 'blob'",
        ),
        ({"timers": True}, "the state has no timers: variables=count"),
        ({}, "either a state variable or the timers"),
        ({"variable": "count", "timers": True}, "either a state variable or the timers"),
    ],
)
def test_what_is_not_there_is_an_error_that_names_the_remedy(
    job: dict[str, str], asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        sk.read_state(job, **asked)
    assert caught.value.hints


def test_one_task_is_read_alone(job: dict[str, str], restored: list[tuple[str, str]]) -> None:
    own = {user: n for user, n in CONTENT.items() if task_of(user, TASKS) == 2}
    assert counts(sk.read_state(job, "count", task="Partition 2")) == own
    assert {task for task, _ in restored} == {"Partition 0", "Partition 2"}  # one for the schema


def test_a_backend_that_is_chosen_is_the_only_one_to_be_read(tmp_path: Path) -> None:
    both = {
        "stores.backup.factories": "near,far",
        "backends.near.factory": "blob",
        "backends.near.uri": (tmp_path / "near").as_uri(),
        "backends.far.factory": "hdfs",
        "backends.far.uri": (tmp_path / "far").as_uri(),
    }
    asyncio.run(make_job(tmp_path, ONE_STORE, **both))
    job = settings(tmp_path) | both
    assert counts(sk.read_state(job, "count", backend="far")) == CONTENT
    # Of one task, and not of the one that is restored first, for the schema.
    (gone,) = (path for path in (tmp_path / "far").rglob("Partition_1") if path.is_dir())
    shutil.rmtree(gone)
    assert counts(sk.read_state(job, "count", backend="near")) == CONTENT
    assert counts(sk.read_state(job, "count")) == CONTENT
    with pytest.raises(RestoreFailedError):
        sk.read_state(job, "count", backend="far")


def test_a_job_that_is_not_there_is_an_error(job: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="the job has no log here: job=other"):
        sk.read_state({**job, "job.name": "other"}, "count")


def test_an_older_commit_is_read_by_position_by_batch_and_by_time(
    golden: dict[str, str],
) -> None:
    for asked in ({"commit": 9}, {"batch": 1}):
        rows = sk.read_state(golden, "count", **asked).to_pylist()  # type: ignore[arg-type]
        found = {row["key"]["key"]: tuple(row["value"].values()) for row in rows}
        assert found == fold(2), asked
    rows = sk.read_state(golden, "count", as_of="2999-01-01T00:00+02:00").to_pylist()
    assert {row["key"]["key"]: tuple(row["value"].values()) for row in rows} == fold(3)


def test_a_released_commit_is_gone(golden: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"no such commit: commit=1 retained=9,15|is released"):
        sk.read_state(golden, "count", commit=1)


def test_a_change_feed_leads_from_one_commit_to_the_other(golden: dict[str, str]) -> None:
    rows = sk.read_state(golden, "count", changes_since=9).to_pylist()
    assert list(rows[0]) == ["change_type", "key", "value", "partition_id"]
    assert {row["change_type"] for row in rows} == {"update"}
    found = {row["key"]["key"]: tuple(row["value"].values()) for row in rows}
    assert found == fold(3)
    one = sk.read_state(golden, "count", changes_since=9, key="key-3").to_pylist()
    assert [row["key"]["key"] for row in one] == ["key-3"]


def test_a_change_feed_without_changes_restores_no_task_twice(
    golden: dict[str, str], restored: list[tuple[str, str]]
) -> None:
    rows = sk.read_state(golden, "count", commit=15, changes_since=15)
    assert rows.num_rows == 0
    assert len(restored) == 1


def test_a_change_feed_does_not_run_backwards(golden: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="begins after its end: begin=15 end=9"):
        sk.read_state(golden, "count", commit=9, changes_since=15)


def test_reading_writes_nothing_where_the_job_keeps_its_state(golden: dict[str, str]) -> None:
    place = Path(golden["blob.store.uri"].removeprefix("file://"))

    def content() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in place.rglob("*") if p.is_file()}

    before = content()
    sk.read_state(golden, "count", changes_since=9)
    assert content() == before


def test_a_commit_that_is_released_while_it_is_read_is_an_error_with_a_remedy(
    golden: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(RestoredTask):  # what the job's clean-up has deleted
        @classmethod
        @override
        async def restore(cls, *args: Any, **options: Any) -> Any:
            raise RestoreFailedError("state is out of reach", task_name="0", store_names=["state"])

    monkeypatch.setattr("statekeep.spark.state.reading.RestoredTask", Gone)
    with pytest.raises(RestoreFailedError):
        sk.read_state(golden, "count", commit=9)
    fold_next = LogView.fold

    def released(view: LogView, position: int, record: Any) -> None:
        fold_next(view, position, record)
        view.commits.pop(9, None)

    async def planned(*args: Any) -> Any:
        plan = await plan_state(*args)
        monkeypatch.setattr(LogView, "fold", released)
        return plan

    monkeypatch.setattr("statekeep.spark.state.reading.plan_state", planned)
    with pytest.raises(
        ConfigError, match=r"released the commit while it was read: commit=9.*savepoint"
    ):
        sk.read_state(golden, "count", commit=9)


def test_a_program_that_stops_reading_leaves_no_files(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(ConfigError):
        sk.read_state(job, "other")
    sk.read_state(job, "count")
    assert list((tmp_path / "scratch").iterdir()) == []
