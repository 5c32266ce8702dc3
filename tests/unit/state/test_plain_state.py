"""The committed stores of jobs in plain Python: every task, one key, at a commit, and what is wrong."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli_kit import CommandLine, job_settings
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import memory_store
from pages_kit import block, commands

import statekeep as sk
from statekeep.backends.memory import forget_place
from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.log_session import LogSession
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.errors import ConfigError, RestoreFailedError
from statekeep.inspection.job import InspectedJob, open_job, open_log_storage
from statekeep.spark.state.changes import changed_rows
from statekeep.spark.state.plan import StateRequest, plan_state
from statekeep.spark.state.reading import read_parts
from statekeep.spark.state.store import StoreTable

Content = dict[bytes, bytes]
FIRST, SECOND = "Partition 0", "totals.of day/1"
OLD: Mapping[str, Content] = {
    FIRST: {b"": b"none", b"key-1": b"1", b"key-10": b"10"},
    SECOND: {b"key-1": b"also one"},
}
NEW: Mapping[str, Content] = {
    FIRST: {b"": b"none", b"key-10": b"10", b"\x00\xff": b""},
    SECOND: {b"key-1": b"another one"},
}


async def commit(
    given: Mapping[str, str], task: str, *contents: Content, stores: Sequence[str] = ("counts",)
) -> int:
    """Go on with a task: a commit for each content of its first store; return where the newest one is."""
    config = load_dict(given)
    async with Container(config) as container:
        opened = await container.start_task(task, stores)
        for content in contents:
            store = opened.store(stores[0])
            if (before := dict(store.scan())) != content:
                store.write({**dict.fromkeys(before), **content})
            await opened.commit({}, force=True)
            await opened.wait()
    async with open_job(config, SystemClock(), task=task) as job:
        return job.view.last_commit_position


async def pin(given: Mapping[str, str], task: str, name: str, position: int) -> None:
    async with open_job(load_dict(given), SystemClock(), task=task) as job:
        await job.pin_writer.pin(name, position)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A job of two tasks with two commits each, the older ones under one name."""
    given = job_settings(tmp_path_factory.mktemp("job"))

    async def make() -> None:
        # The positions of a task are not those of the other one.
        for task, extra in ((FIRST, 0), (SECOND, 3)):
            position = await commit(given, task, *[OLD[task]] * (extra + 1))
            await pin(given, task, "monday", position)
            position = await commit(given, task, NEW[task])
            await pin(given, task, f"last of {task}", position)

    asyncio.run(make())
    return given


def contents(rows: pa.Table) -> dict[str, Content]:
    found: dict[str, Content] = {}
    for row in rows.to_pylist():
        found.setdefault(row["task"], {})[row["key"]] = row["value"]
    assert sum(map(len, found.values())) == rows.num_rows
    return found


def batch_of(given: Mapping[str, str], task: str, name: str) -> int:
    async def find() -> int:
        async with open_job(load_dict(given), SystemClock(), task=task) as job:
            return job.find_commit(name)[1].batch

    return asyncio.run(find())


def test_every_task_is_read_at_its_newest_commit(job: dict[str, str]) -> None:
    rows = sk.read_state(job, "counts")
    assert rows.schema == pa.schema({"key": pa.binary(), "value": pa.binary(), "task": pa.string()})
    assert contents(rows) == NEW
    assert rows.to_pylist()[0]["key"] == b""  # in order of the key


def test_the_logs_of_tasks_are_read_beside_each_other(job: dict[str, str], tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    @asynccontextmanager
    async def open_together(*given: Any, **named: Any) -> AsyncGenerator[InspectedJob]:
        async with open_job(*given, **named) as opened:
            if "task" in named:
                await asyncio.wait_for(both.wait(), 10)
            yield opened

    request = StateRequest(load_dict(job), "counts")
    plan = asyncio.run(plan_state(request, tmp_path / "plan", open_it=open_together))
    assert [part.log for part in plan.parts] == [FIRST, SECOND]


def test_one_task_is_read_at_any_commit_of_its_log(job: dict[str, str]) -> None:
    one = {"settings": job, "variable": "counts", "task": SECOND}
    assert contents(sk.read_state(**one)) == {SECOND: NEW[SECOND]}  # type: ignore[arg-type]
    for asked in ({"batch": batch_of(job, SECOND, "monday")}, {"commit": "monday"}):
        rows = sk.read_state(**one, **asked)  # type: ignore[arg-type]
        assert contents(rows) == {SECOND: OLD[SECOND]}, asked


def test_all_tasks_are_read_at_a_pin_that_each_has_and_at_a_time(job: dict[str, str]) -> None:
    assert contents(sk.read_state(job, "counts", commit="monday")) == OLD
    assert contents(sk.read_state(job, "counts", as_of="2999-01-01")) == NEW


def test_a_key_is_not_what_keys_begin_with(job: dict[str, str]) -> None:
    for key, expected in {
        b"key-1": {FIRST: {b"key-1": b"1"}, SECOND: {b"key-1": b"also one"}},
        b"": {FIRST: {b"": b"none"}},
        b"key": {},
    }.items():
        assert contents(sk.read_state(job, "counts", key=key, commit="monday")) == expected


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"variable": "cuonts"},
            "no such store: store=cuonts stores=counts.*did you mean 'counts'",
        ),
        ({"variable": "x"}, "no such store: store=x stores=counts; hint: .*start_task"),
        ({"task": "Partition 9"}, "no such task: task=Partition 9.*did you mean 'Partition 0'"),
        ({"variable": None, "timers": True}, "a job in plain Python has no timers: stores=counts"),
        ({"operator": "mian"}, "no such operator: operator=mian.*did you mean 'main'"),
        ({"key": "key-1"}, r"in plain Python is bytes: key='key-1'; hint: .*hexadecimal"),
        ({"columns": ["vlaue"]}, "columns=key,value,task.*did you mean 'value'"),
        ({"backend": "naer"}, "backend=naer backends=near,far; hint: did you mean 'near'"),
        ({"commit": 5}, f"are of one task.*tasks={FIRST},{SECOND}; hint: name one task"),
        ({"commit": "1-2"}, "a position, a checkpoint id and a batch are of one task"),
        ({"batch": 1}, "a position, a checkpoint id and a batch are of one task"),
        ({"changes_since": 5}, "a position, a checkpoint id and a batch are of one task"),
        (
            {"commit": f"last of {FIRST}"},
            f"no such commit: commit=last of .*log of task '{SECOND}'",
        ),
        ({"as_of": "2001-01-01"}, f"no retained commit is that old.*log of task '{FIRST}'"),
        ({"task": SECOND, "commit": 999}, "no such commit: commit=999"),
        ({"commit": "monday", "changes_since": "newest"}, "no such commit: commit=newest"),
    ],
)
def test_what_is_not_there_is_an_error_that_names_the_remedy(
    job: dict[str, str], asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        sk.read_state(job, **{"variable": "counts"} | asked)
    assert caught.value.hints
    assert (
        caught.value.__context__ is None
    )  # none of the log of a job on Spark, which has to be missing


def test_a_change_feed_is_of_each_task_between_two_of_its_commits(job: dict[str, str]) -> None:
    rows = sk.read_state(job, "counts", changes_since="monday")
    assert rows.column_names == ["change_type", "key", "value", "task"]
    assert {tuple(row.values()) for row in rows.to_pylist()} == {
        ("delete", b"key-1", b"1", FIRST),
        ("insert", b"\x00\xff", b"", FIRST),
        ("update", b"key-1", b"another one", SECOND),
    }
    one = sk.read_state(job, "counts", changes_since="monday", key=b"\x00\xff")
    assert one["change_type"].to_pylist() == ["insert"]


CONTENTS = st.dictionaries(st.binary(max_size=2), st.binary(max_size=2), max_size=9)


@settings(deadline=None)  # a busy machine is no failure
@given(old=CONTENTS, new=CONTENTS, key=st.none() | st.binary(max_size=2))
def test_changes_lead_from_any_content_to_any_other(
    old: Content, new: Content, key: bytes | None
) -> None:
    before, after = memory_store(), memory_store()
    before.write(old)
    after.write(new)
    rows = [StoreTable().open(store, has_values=True) for store in (before, after)]
    changed = {k: v for k, v in old.items() if key in (None, k)}
    row: Any
    for kind, row in changed_rows(rows[0], rows[1], key):
        assert (row.key in changed) is (kind != "insert")
        if kind == "delete":
            assert changed.pop(row.key) == row.value
        else:
            assert changed.get(row.key) != row.value
            changed[row.key] = row.value
    assert changed == {k: v for k, v in new.items() if key in (None, k)}


def test_a_store_that_joins_or_leaves_is_inserted_or_deleted(tmp_path: Path) -> None:
    job = job_settings(tmp_path) | {"stores.seen.backup.factories": "far"}
    one, both, other = (
        asyncio.run(commit(job, FIRST, {b"a": b"1"}, stores=stores))
        for stores in (["counts"], ["seen", "counts"], ["seen"])
    )

    def kinds(store: str, **asked: int) -> list[str]:
        rows = sk.read_state(job, store, **asked)  # type: ignore[arg-type]
        return [row["change_type"] for row in rows.to_pylist()]

    assert kinds("seen", changes_since=one, commit=both) == ["insert"]
    # In the same version, which nothing has changed since.
    assert kinds("counts", changes_since=both, commit=other) == ["delete"]
    assert kinds("counts", changes_since=one, commit=both) == []
    assert sk.read_state(job, "seen", backend="far").num_rows == 1
    with pytest.raises(ConfigError, match=r"no backup of the store.* backend=near backends=far"):
        sk.read_state(job, "seen", backend="near")


def test_a_store_that_is_backed_up_nowhere_is_not_read_as_empty(tmp_path: Path) -> None:
    job = job_settings(tmp_path) | {"stores.cache.restore.factories": ""}
    asyncio.run(commit(job, FIRST, {b"a": b"1"}, stores=["cache", "counts"]))
    with pytest.raises(ConfigError, match="no backup of the store to read: store=cache"):
        sk.read_state(job, "cache")


@pytest.mark.asyncio
async def test_a_job_that_runs_is_not_disturbed(tmp_path: Path) -> None:
    job = job_settings(tmp_path)
    places = [tmp_path / name for name in ("near", "far", "local")]

    def files() -> dict[str, bytes]:
        found = (path for place in places for path in place.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    async with Container(load_dict(job)) as container:
        task = await container.start_task(FIRST, ["counts"])
        assert sk.read_state(job, "counts").num_rows == 0
        for value in (b"1", b"2"):
            task.store("counts").put(b"a", value)
            await (await task.commit({}, force=True)).wait()
            await task.wait()
            task.store("counts").put(b"b", b"not committed")
            before = files()
            assert contents(sk.read_state(job, "counts", key=b"a")) == {FIRST: {b"a": value}}
            assert files() == before


def test_the_next_backend_serves_unless_one_is_chosen(tmp_path: Path) -> None:
    job = job_settings(tmp_path)
    asyncio.run(commit(job, FIRST, {b"a": b"1"}))
    for blob in (tmp_path / "near").rglob("*"):
        if blob.is_file() and "log" not in blob.relative_to(tmp_path).parts:
            blob.unlink()
    assert contents(sk.read_state(job, "counts")) == {FIRST: {b"a": b"1"}}
    with pytest.raises(RestoreFailedError, match="near"):
        sk.read_state(job, "counts", backend="near")


def test_a_commit_that_is_released_while_it_is_read_is_an_error_with_a_remedy(
    tmp_path: Path,
) -> None:
    job = job_settings(tmp_path, retained=2)
    asyncio.run(commit(job, FIRST, {b"a": b"1"}))
    plan = asyncio.run(plan_state(StateRequest(load_dict(job), "counts"), tmp_path / "plan"))
    asyncio.run(commit(job, FIRST, *({b"a": b"%d" % n} for n in range(5))))
    for backups in tmp_path.glob("*/orders/state-*"):  # as a later clean-up
        shutil.rmtree(backups)
    with pytest.raises(ConfigError, match="released the commit while it was read"):
        list(read_parts(plan, plan.parts, tmp_path / "rows"))


def test_a_task_that_was_reset_has_no_rows_and_one_that_is_half_made_is_an_error(
    tmp_path: Path,
) -> None:
    job = job_settings(tmp_path)
    asyncio.run(commit(job, FIRST, {b"a": b"1"}))

    async def begin(*, is_half_made: bool) -> None:
        async with open_log_storage(load_dict(job), SystemClock(), task=SECOND) as storage:
            log = await LogSession.of_tool(storage.log, "test")
            if is_half_made:
                await log.begin_attempt(0, CheckpointId.at(1), {}, [SECOND])

    asyncio.run(begin(is_half_made=False))
    assert contents(sk.read_state(job, "counts")) == {FIRST: {b"a": b"1"}}
    asyncio.run(begin(is_half_made=True))
    with pytest.raises(ConfigError, match=f"has no commit yet.*log of task '{SECOND}'"):
        sk.read_state(job, "counts")


@pytest.fixture
def unlisted(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A job whose logs are in a backend that cannot list them."""
    job = job_settings(tmp_path) | {"job.name": "plain-unlisted", "backends.near.factory": "memory"}
    del job["backends.near.uri"]
    asyncio.run(commit(job, FIRST, {b"a": b"1"}))
    yield job
    forget_place("near")


def test_where_logs_cannot_be_listed_the_task_is_named(unlisted: dict[str, str]) -> None:
    assert contents(sk.read_state(unlisted, "counts", task=FIRST)) == {FIRST: {b"a": b"1"}}
    for asked, told in ({}, "name it with --task"), ({"task": SECOND}, f"task={SECOND}"):
        with pytest.raises(ConfigError, match=f"the job has no log here: .*{told}"):
            sk.read_state(unlisted, "counts", **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [("key", "value"), ("key", "total")])
def test_the_program_alone_writes(job: dict[str, str], columns: Sequence[str]) -> None:
    rows = pa.table({name: [b"a"] for name in columns})
    with pytest.raises(ConfigError, match=r"not written from outside.*hint: let the program"):
        sk.write_state(job, "counts", rows, reason="test")
    assert contents(sk.read_state(job, "counts")) == NEW


def test_the_page_reads_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = job_settings(tmp_path)
    Path("job.properties").write_text("".join(f"{key}={text}\n" for key, text in job.items()))
    asyncio.run(commit(job, FIRST, {b"key-1": b"1", b"key-2": b"2"}))
    page = ("docs/how-to/read-state.md", "A job in plain Python")
    exec(block(*page, "python"), {"sk": sk})  # noqa: S102 - the program on the page
    assert capsys.readouterr().out == "2 [b'1']\n"
    statekeep = CommandLine(Path("job.properties"), monkeypatch, capsys)
    read, get = (
        statekeep(line.removeprefix("statekeep "), has_config=False) for line in commands(*page)
    )
    assert len(read.out.splitlines()) == 3
    assert get.out.splitlines()[1].split() == [b"key-1".hex(), b"1".hex(), "Partition", "0"]
