"""``statekeep savepoint restore`` and ``statekeep rescale`` in plain Python."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_kit import INPUT, TASK, CommandLine, commit_numbers, job_settings, route

from statekeep.checkpoint.records import CommitRecord, QueryState
from statekeep.commit import clean_up
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import ConfigError, RetriableError
from statekeep.inspection import new_job
from statekeep.inspection.job import InspectedJob, LogStorage
from statekeep.inspection.new_job import NewJob

LOG = f"--task '{TASK}'"


async def content(
    directory: Path, job_name: str, task: str = TASK
) -> tuple[str | None, dict[bytes, bytes]]:
    """Start a job and return the input offset and the state that it goes on from."""
    settings = job_settings(directory) | {"job.name": job_name}
    async with Container(load_dict(settings)) as container:
        started = await container.start_task(task, ["counts"])
        return started.input_offsets.get(INPUT), dict(started.store("counts").scan())


def would_delete(statekeep: CommandLine) -> list[str]:
    document = statekeep(f"gc --dry-run --grace 0 {LOG} --json").json
    return [name for part in document["leftovers"] for name in part["names"]]


def test_a_new_job_starts_with_the_state_and_offsets_of_a_savepoint(
    statekeep: CommandLine, job: Path
) -> None:
    expected = asyncio.run(content(job, "orders"))
    statekeep(f"savepoint create v1 {LOG} --yes")
    asyncio.run(commit_numbers(job, [5, 6]))
    result = statekeep(f"savepoint restore v1 --as orders-2 {LOG} --json")
    assert (result.status, len(result.json)) == (0, 1)
    assert asyncio.run(content(job, "orders-2")) == expected
    assert asyncio.run(content(job, "orders"))[0] == "6"


def test_a_savepoint_is_as_good_once_the_log_is_trimmed_behind_its_commit(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_up, "_FAR_BEHIND", 5)
    expected = asyncio.run(content(job, "orders"))
    statekeep(f"savepoint create v1 {LOG} --yes")
    asyncio.run(commit_numbers(job, range(5, 65), retained=2))
    floor = min(int(p.stem) for p in (job / "near/orders/main/Partition_0/log").glob("*.json"))
    (row,) = statekeep(f"savepoint list {LOG} --json").json
    assert row["commit"] < floor
    assert row["records"] < 100
    assert statekeep(f"verify v1 {LOG}").status == 0
    assert would_delete(statekeep) == []
    events = [row["event"] for row in statekeep(f"events {LOG} --json").json]
    assert "kept" in events
    assert statekeep(f"savepoint restore v1 --as orders-2 {LOG}").status == 0
    assert asyncio.run(content(job, "orders-2")) == expected
    statekeep(f"savepoint drop v1 {LOG}")
    asyncio.run(commit_numbers(job, [65, 66], retained=2))
    assert statekeep(f"checkpoints show {row['commit']} {LOG}").status == 2
    assert would_delete(statekeep) == []


def test_the_new_job_needs_nothing_of_the_old_one(statekeep: CommandLine, job: Path) -> None:
    expected = asyncio.run(content(job, "orders"))
    current = statekeep(f"checkpoints show {LOG} --json").json["commit"]
    statekeep(f"savepoint restore {current} --as orders-2 {LOG}")
    for place in ("near", "far", "local"):
        shutil.rmtree(job / place / "orders")
    assert asyncio.run(content(job, "orders-2")) == expected
    result = statekeep(f"verify {LOG} --set job.name=orders-2 --json")
    assert [row["error"] for row in result.json] == [None, None]


def test_a_new_job_deletes_nothing_of_the_old_one(statekeep: CommandLine, job: Path) -> None:
    statekeep(f"savepoint create v1 {LOG} --yes")
    statekeep(f"savepoint restore v1 --as orders-2 {LOG}")
    before = sorted(path for path in (job / "near" / "orders").rglob("*") if path.is_file())
    settings = job_settings(job, retained=2) | {"job.name": "orders-2"}

    async def go_on() -> None:
        async with Container(load_dict(settings)) as container:
            task = await container.start_task(TASK, ["counts"])
            for number in range(5, 12):
                task.store("counts").put(b"key-%d" % number, b"new")
                await (await task.commit({INPUT: str(number)}, force=True)).wait()

    asyncio.run(go_on())
    after = sorted(path for path in (job / "near" / "orders").rglob("*") if path.is_file())
    assert set(before) <= set(after)
    assert statekeep(f"verify v1 {LOG}").status == 0


def test_a_job_that_is_there_is_not_overwritten(statekeep: CommandLine, job: Path) -> None:
    statekeep(f"savepoint create v1 {LOG} --yes")
    statekeep(f"savepoint restore v1 --as orders-2 {LOG}")
    before = statekeep(f"events {LOG} --set job.name=orders-2 --json").json
    result = statekeep(f"savepoint restore v1 --as orders-2 {LOG}")
    assert result.status == 2
    assert "there is a job of that name: job=orders-2" in result.err
    assert statekeep(f"events {LOG} --set job.name=orders-2 --json").json == before
    same = statekeep(f"savepoint restore v1 --as orders {LOG}")
    assert "needs a name of its own" in same.err


def test_a_job_of_which_one_task_is_missing_starts_none_of_them(
    statekeep: CommandLine, job: Path
) -> None:
    logs = f"{LOG} --task 'Partition 1'"
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    statekeep(f"savepoint create v1 {logs} --yes")
    (packs,) = (job / "near").rglob("Partition_1/counts")
    for place in (packs, *(job / "far").rglob("Partition_1/counts")):
        shutil.rmtree(place)
    assert statekeep(f"savepoint restore v1 --as orders-2 {logs}").status == 3
    for task in (TASK, "Partition 1"):
        with pytest.raises(ConfigError, match="was only partly made: job=orders-2"):
            asyncio.run(content(job, "orders-2", task))
    assert not [path for path in job.rglob("orders-2/state-*/**/*") if path.is_file()]
    reset = statekeep(f"reset {logs} --set job.name=orders-2 --yes")
    assert reset.status == 0
    assert asyncio.run(content(job, "orders-2")) == (None, {})


def test_a_task_that_was_made_keeps_its_state_if_the_end_of_another_fails(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = f"{LOG} --task 'Partition 1'"
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    statekeep(f"savepoint create v1 {logs} --yes")
    expected = asyncio.run(content(job, "orders"))
    finish, ended = NewJob.finish, 0

    async def finish_once(self: NewJob, query: QueryState | None) -> int:
        nonlocal ended
        ended += 1
        if ended == 2:
            raise RetriableError("cut off")
        return await finish(self, query)

    monkeypatch.setattr(NewJob, "finish", finish_once)
    assert statekeep(f"savepoint restore v1 --as orders-2 {logs}").status == 4
    shutil.rmtree(job / "local")
    assert asyncio.run(content(job, "orders-2")) == expected


def test_a_rescaled_job_that_was_not_made_to_its_end_starts_no_task(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = 0

    async def add(self: NewJob, *args: Any) -> None:
        nonlocal added
        added += 1
        if added == 2:
            raise RetriableError("cut off")

    monkeypatch.setattr(NewJob, "add", add)
    statekeep(f"rescale --partitions 3 --as orders-3 --router cli_kit:route {LOG}")
    for number in range(3):
        with pytest.raises(ConfigError, match="was only partly made: job=orders-3"):
            asyncio.run(content(job, "orders-3", f"Partition {number}"))


def test_a_job_that_is_started_while_it_is_made_is_not_overwritten(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = new_job.require_no_commit

    async def look_and_start(config: Config, storage: LogStorage) -> None:
        await look(config, storage)
        await content(job, "orders-2")

    monkeypatch.setattr(new_job, "require_no_commit", look_and_start)
    statekeep(f"savepoint create v1 {LOG} --yes")
    result = statekeep(f"savepoint restore v1 --as orders-2 {LOG}")
    assert (result.status, "there is a job of that name" in result.err) == (2, True)
    assert asyncio.run(content(job, "orders-2")) == (None, {})


def test_rescaling_moves_every_key_to_the_task_of_its_router(
    statekeep: CommandLine, job: Path
) -> None:
    offset, before = asyncio.run(content(job, "orders"))
    result = statekeep(f"rescale --partitions 3 --as orders-3 --router cli_kit:route {LOG} --json")
    assert result.status == 0
    found: dict[bytes, bytes] = {}
    for number in range(3):
        task_offset, state = asyncio.run(content(job, "orders-3", f"Partition {number}"))
        assert task_offset == offset
        assert all(route(key, 3) == number for key in state)
        assert found.keys().isdisjoint(state)
        found |= state
    assert found == before
    assert [row["entries"] for row in result.json] == [
        sum(route(key, 3) == number for key in before) for number in range(3)
    ]


def test_a_rescaled_job_goes_back_to_its_first_form(statekeep: CommandLine, job: Path) -> None:
    before = asyncio.run(content(job, "orders"))
    statekeep(f"rescale --partitions 3 --as orders-3 --router cli_kit:route {LOG}")
    tasks = " ".join(f"--task 'Partition {number}'" for number in range(3))
    statekeep(
        f"rescale --partitions 1 --as orders-1 --router cli_kit:route {tasks} "
        "--set job.name=orders-3"
    )
    assert asyncio.run(content(job, "orders-1")) == before


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        ([0, 2], "tasks of the job are left out: tasks=Partition 1"),
        ([0, 0, 1, 2], "tasks are named twice: tasks=Partition 0"),
        ([1, 2], "tasks of the job are left out: tasks=Partition 0"),
        ([1], "tasks of the job are left out: tasks=Partition 0,Partition 2"),
    ],
    ids=["gap", "twice", "first", "several"],
)
def test_a_task_that_is_not_named_stops_the_rescaling(
    statekeep: CommandLine, job: Path, named: list[int], complaint: str
) -> None:
    for number in (1, 2):
        asyncio.run(commit_numbers(job, [1], name=f"Partition {number}"))
    tasks = " ".join(f"--task 'Partition {number}'" for number in named)
    result = statekeep(f"rescale --partitions 2 --as orders-3 --router cli_kit:route {tasks}")
    assert (result.status, complaint in result.err) == (2, True)


@pytest.mark.parametrize("named", [TASK, "Partition 1"])
def test_a_task_that_is_not_named_stops_the_restore_of_a_savepoint(
    statekeep: CommandLine, job: Path, named: str
) -> None:
    asyncio.run(commit_numbers(job, [1], name="Partition 1"))
    statekeep(f"savepoint create v1 {LOG} --task 'Partition 1' --yes")
    result = statekeep(f"savepoint restore v1 --as orders-2 --task '{named}'")
    assert (result.status, "tasks of the job are left out" in result.err) == (2, True)
    assert not list(job.rglob("*orders-2*"))


@pytest.mark.parametrize("task", [TASK, "Partition 1"])
def test_tasks_with_different_stores_are_not_rescaled(
    statekeep: CommandLine, job: Path, task: str
) -> None:
    for name in (TASK, "Partition 1"):
        asyncio.run(commit_numbers(job, [9], name=name))
    config = load_dict(job_settings(job) | {"stores.extra.backup.factories": "near"})

    async def add_a_store() -> None:
        async with Container(config) as container:
            started = await container.start_task(task, ["counts", "extra"])
            started.store("extra").put(b"key-1", b"1")
            await (await started.commit({INPUT: "9"}, force=True)).wait()

    asyncio.run(add_a_store())
    result = statekeep(
        f"rescale --partitions 2 --as orders-2 --router cli_kit:route {LOG} --task 'Partition 1' "
        "--set stores.extra.backup.factories=near"
    )
    assert (result.status, "two tasks have different stores" in result.err) == (2, True)
    assert not list(job.rglob("*orders-2*"))


def test_a_key_of_two_tasks_that_one_new_task_would_get_makes_no_job(
    statekeep: CommandLine, job: Path
) -> None:
    asyncio.run(commit_numbers(job, [6, 4], name="Partition 1"))
    result = statekeep(
        f"rescale --partitions 2 --as orders-2 --router cli_kit:route {LOG} --task 'Partition 1'"
    )
    assert result.status == 2
    assert (
        "two tasks hold the same key, and one new task would get both: store=counts key=b'key-4' "
        "task=Partition 1 new_task=Partition 0" in result.err
    )
    assert not list(job.rglob("*orders-2*"))


def test_keys_that_only_the_program_can_route_are_refused(statekeep: CommandLine) -> None:
    result = statekeep(f"rescale --partitions 3 --as orders-3 {LOG}")
    assert result.status == 2
    assert "only the program knows which task a key belongs to: job=orders" in result.err
    assert "--router package.module:function" in result.err


def test_a_router_that_names_no_task_is_refused_and_makes_no_job(statekeep: CommandLine) -> None:
    result = statekeep(f"rescale --partitions 3 --as orders-3 --router cli_kit:route_nowhere {LOG}")
    assert (result.status, "the router returned a number that no task has" in result.err) == (
        2,
        True,
    )
    assert statekeep(f"checkpoints list {LOG} --set job.name=orders-3").status == 2


def test_instances_of_a_job_are_found_by_their_id(statekeep: CommandLine, job: Path) -> None:
    async def start(name: str, *, is_writing: bool) -> dict[bytes, bytes]:
        settings = job_settings(job) | {"job.name": name, "job.id": "2"}
        async with Container(load_dict(settings)) as container:
            task = await container.start_task(TASK, ["counts"])
            if is_writing:
                task.store("counts").put(b"second", b"instance")
                await (await task.commit({INPUT: "7"}, force=True)).wait()
            return dict(task.store("counts").scan())

    asyncio.run(start("orders", is_writing=True))
    second = f"{LOG} --set job.id=2"
    assert len(statekeep(f"checkpoints list {second} --json").json) == 2
    statekeep(f"savepoint create v1 {second} --yes")
    assert statekeep(f"savepoint restore v1 --as copy {second}").status == 0
    assert asyncio.run(start("copy", is_writing=False)) == {b"second": b"instance"}
    assert statekeep(f"verify {second}").status == 0


QUERY = QueryState(query_id="query-1", metadata="", offsets="v1", commit="v1")


@pytest.mark.parametrize(
    ("old", "new", "status", "complaint"),
    [
        ("old", "old", 6, "is in use"),
        ("other", "new", 6, "is of another query"),
        ("none", "new", 6, "not the checkpoint location of a query"),
        ("old", "nowhere:x", 2, "not the name of a checkpoint location"),
    ],
    ids=["in use", "another query", "no query", "wrong name"],
)
@pytest.mark.parametrize(
    "line",
    ["savepoint restore v1", "rescale --partitions 3 --router cli_kit:route"],
    ids=["savepoint", "rescale"],
)
def test_a_wrong_checkpoint_location_is_reported_before_any_state_is_moved(
    statekeep: CommandLine,
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    *,
    old: str,
    new: str,
    status: int,
    complaint: str,
) -> None:
    find_commit = InspectedJob.find_commit

    def with_query(self: InspectedJob, which: str | None = None) -> tuple[int, CommitRecord]:
        position, commit = find_commit(self, which)
        return position, msgspec.structs.replace(commit, query=QUERY)

    for name in ("old", "other"):
        (job / name).mkdir()
        query_id = QUERY.query_id if name == "old" else "query-2"
        (job / name / "metadata").write_text(f'{{"id":"{query_id}"}}', encoding="utf-8")
    statekeep(f"savepoint create v1 {LOG} --yes")
    monkeypatch.setattr(InspectedJob, "find_commit", with_query)
    target = new if ":" in new else job / new
    result = statekeep(
        f"{line} --as orders-2 {LOG} --from-location {job / old} --to-location {target}"
    )
    assert (result.status, complaint in result.err) == (status, True)
    assert not list(job.rglob("*orders-2*"))
