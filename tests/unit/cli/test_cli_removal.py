"""``statekeep checkpoints remove``, ``gc``, ``reset`` and ``stores show``."""

import asyncio
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cli_kit import INPUT, TASK, CommandLine, commit_numbers, job_settings

from statekeep.backends.blob import backup
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.errors import TaskFencedError

LOG = f"--task '{TASK}'"


def positions(statekeep: CommandLine) -> list[int]:
    return [row["commit"] for row in statekeep(f"checkpoints list {LOG} --json").json]


def blobs(directory: Path) -> set[str]:
    """Return the files of both backends that hold state."""
    return {
        str(path.relative_to(directory))
        for place in ("near", "far")
        for path in (directory / place).rglob("state-*/**/*")
        if path.is_file()
    }


def names(leftovers: Any) -> set[str]:
    return {name for part in leftovers["leftovers"] for name in part["names"]}


def file_names(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[2] for path in paths}


async def begin_anew(directory: Path) -> tuple[dict[Any, str], dict[bytes, bytes]]:
    async with Container(load_dict(job_settings(directory))) as container:
        task = await container.start_task(TASK, ["counts"])
        return dict(task.input_offsets), dict(task.store("counts").scan())


@pytest.fixture
def deltas_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put each delta into a blob of its own: later commits reach it, and not the index beside it."""
    monkeypatch.setattr(backup, "MAX_INDEX_DELTA_BYTES", 0)


@pytest.mark.usefixtures("deltas_apart")
def test_a_removed_commit_is_gone_with_all_that_only_it_reached(
    statekeep: CommandLine, job: Path
) -> None:
    before, old = blobs(job), positions(statekeep)
    result = statekeep(f"checkpoints remove {old[1]} {old[2]} {LOG} --yes")
    assert (result.status, result.out) == (0, f"removed: {old[1]}, {old[2]}\n")
    assert positions(statekeep) == [old[0], *old[3:]]
    assert blobs(job) < before
    assert statekeep(f"verify {LOG}").status == 0
    assert statekeep(f"verify {old[3]} {LOG}").status == 0


def test_the_current_commit_and_pinned_ones_are_not_removed(statekeep: CommandLine) -> None:
    old = positions(statekeep)
    statekeep(f"checkpoints pin keep {old[1]} {LOG}")
    history = statekeep(f"events {LOG} --json").json
    current = statekeep(f"checkpoints remove {old[-1]} {LOG} --yes")
    assert (current.status, "the current commit stays" in current.err) == (2, True)
    pinned = statekeep(f"checkpoints remove {old[1]} {LOG} --yes")
    assert (pinned.status, "the commit is pinned" in pinned.err) == (2, True)
    assert statekeep(f"events {LOG} --json").json == history


def test_nothing_is_left_to_collect_after_the_jobs_own_clean_up(statekeep: CommandLine) -> None:
    assert names(statekeep(f"gc --dry-run {LOG} --json").json) == set()


def test_what_was_begun_within_the_grace_time_is_left_alone(
    statekeep: CommandLine, job: Path
) -> None:
    (made,) = (job / "near").rglob("state-*/near/main/Partition_0/counts/1-1")
    (made / "late.sst").write_bytes(b"late")
    old = positions(statekeep)
    statekeep(f"checkpoints remove {old[1]} {LOG} --yes")
    (made / "later.sst").write_bytes(b"late")
    assert file_names(names(statekeep(f"gc --grace 1h {LOG} --json").json)) == set()
    assert file_names(names(statekeep(f"gc --grace 0 {LOG} --json").json)) == {"later.sst"}
    wrong = statekeep(f"gc --grace soon {LOG}")
    assert (wrong.status, "--grace must be" in wrong.err) == (2, True)


@pytest.mark.parametrize(
    "place",
    [
        "main/Partition_0/dropped/1-1",
        "main/Partition_7/counts/1-1",
        "gone/Partition_0/counts/1-1",
    ],
    ids=["store", "task", "operator"],
)
def test_what_is_left_of_something_that_the_job_no_longer_has_is_collected(
    statekeep: CommandLine, job: Path, place: str
) -> None:
    (backend,) = (job / "near").rglob("state-*/near")
    statekeep(f"checkpoints remove {positions(statekeep)[1]} {LOG} --yes")
    before = blobs(job)
    (backend / place).mkdir(parents=True, exist_ok=True)
    (backend / place / "0123456789abcdef-0-000012.sst").write_bytes(b"left behind")
    assert len(names(statekeep(f"gc {LOG} --json").json)) == 1
    assert blobs(job) == before
    assert statekeep(f"verify {LOG}").status == 0


@pytest.mark.parametrize("attempt", ["1-999", "9-1"])
def test_what_an_attempt_made_that_may_be_open_is_left_alone(
    statekeep: CommandLine, job: Path, attempt: str
) -> None:
    (store,) = (job / "near").rglob("state-*/near/main/Partition_0/counts")
    statekeep(f"checkpoints remove {positions(statekeep)[1]} {LOG} --yes")
    (store / attempt).mkdir()
    (store / attempt / "0123456789abcdef-0-000012.sst").write_bytes(b"on its way")
    assert names(statekeep(f"gc {LOG} --json").json) == set()


def test_a_lost_index_stops_the_collection_before_anything_is_deleted(
    statekeep: CommandLine, job: Path
) -> None:
    (made,) = (job / "near").rglob("state-*/near/main/Partition_0/counts/1-1")
    statekeep(f"checkpoints remove {positions(statekeep)[1]} {LOG} --yes")
    (made / "late.sst").write_bytes(b"late")
    # Only the first commit after what is closed tells what is still reached of it.
    next((job / "near").rglob("1-2/*snapshot-index*")).unlink()
    before = blobs(job)
    assert statekeep(f"gc {LOG}").status == 3
    assert blobs(job) == before


def test_a_dry_run_names_exactly_what_the_run_deletes(statekeep: CommandLine, job: Path) -> None:
    """Blobs of an attempt that never completed turn up after the job's own clean-up."""
    (made,) = (job / "near").rglob("state-*/near/main/Partition_0/counts/1-1")
    for name in ("late-1.sst", "late-2.sst"):
        (made / name).write_bytes(b"late")
    old = positions(statekeep)
    statekeep(f"checkpoints remove {old[1]} {LOG} --yes")
    (made / "late-3.sst").write_bytes(b"late")
    before = blobs(job)
    planned = statekeep(f"gc --dry-run {LOG} --json").json
    assert planned["is-dry-run"] is True
    assert blobs(job) == before
    statekeep(f"gc {LOG}")
    assert file_names(before - blobs(job)) == file_names(names(planned)) == {"late-3.sst"}
    assert statekeep(f"verify {LOG}").status == 0


def test_collecting_garbage_beside_a_running_job_harms_nothing(
    statekeep: CommandLine, job: Path
) -> None:
    async def run() -> None:
        async with Container(load_dict(job_settings(job))) as container:
            task = await container.start_task(TASK, ["counts"])
            for number in (5, 6, 7):
                task.store("counts").put(b"key-1", b"%d" % number)
                commit = await task.commit({INPUT: str(number)}, force=True)
                assert (await asyncio.to_thread(statekeep, f"gc {LOG}")).status == 0
                await commit.wait()

    asyncio.run(run())
    assert statekeep(f"verify {LOG}").status == 0


def test_a_job_starts_anew_after_a_reset_and_nothing_is_left_of_it(
    statekeep: CommandLine, job: Path
) -> None:
    before = blobs(job)
    assert before
    planned = statekeep(f"reset --dry-run {LOG} --json").json
    assert file_names(names(planned)) == file_names(before)
    assert blobs(job) == before
    assert statekeep(f"reset {LOG} --yes").status == 0
    assert blobs(job) == set()
    assert asyncio.run(begin_anew(job)) == ({}, {})
    asyncio.run(commit_numbers(job, [1]))
    assert statekeep(f"verify {LOG}").status == 0


@pytest.mark.parametrize("line", ["reset --dry-run", "reset --yes"])
def test_a_reset_warns_of_backends_that_it_does_not_reach(
    statekeep: CommandLine, job: Path, line: str
) -> None:
    before = blobs(job)
    result = statekeep(f"{line} {LOG} --set stores.counts.backup.factories=near")
    assert (result.status, "what is there stays: backend=far" in result.err) == (0, True)
    assert "backend=near" not in result.err
    assert {name for name in before if name.startswith("far/")} <= blobs(job)
    assert "stays" not in statekeep(f"reset --dry-run {LOG}").err


def test_a_driver_of_a_job_that_is_reset_is_fenced(statekeep: CommandLine, job: Path) -> None:
    async def run() -> None:
        async with Container(load_dict(job_settings(job))) as container:
            task = await container.start_task(TASK, ["counts"])
            await asyncio.to_thread(statekeep, f"reset {LOG} --yes")
            task.store("counts").put(b"key-1", b"zombie")
            with pytest.raises(TaskFencedError):
                await (await task.commit({INPUT: "99"}, force=True)).wait()

    asyncio.run(run())
    assert asyncio.run(begin_anew(job)) == ({}, {})


def test_a_job_with_savepoints_is_not_reset_unless_they_are_meant(
    statekeep: CommandLine, job: Path
) -> None:
    statekeep(f"savepoint create v1 {LOG} --yes")
    before = blobs(job)
    refused = statekeep(f"reset {LOG} --yes")
    assert (refused.status, "commits are kept under names: names=v1" in refused.err) == (2, True)
    assert blobs(job) == before
    assert statekeep(f"reset {LOG} --with-savepoints --yes").status == 0
    assert blobs(job) == set()


def test_no_task_is_reset_before_all_were_found_to_let_themselves_be(
    statekeep: CommandLine, job: Path
) -> None:
    other = "--task 'Partition 1'"
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    statekeep(f"savepoint create v1 {other} --yes")
    history, before = statekeep(f"events {LOG} --json").json, blobs(job)
    refused = statekeep(f"reset {LOG} {other} --yes")
    assert (refused.status, "commits are kept under names: names=v1" in refused.err) == (2, True)
    assert statekeep(f"events {LOG} --json").json == history
    assert blobs(job) == before


def test_without_a_yes_nothing_is_reset(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    before = statekeep(f"events {LOG} --json").json
    assert statekeep(f"reset {LOG}").status != 0
    assert statekeep(f"events {LOG} --json").json == before


@pytest.mark.parametrize("is_missing", [False, True], ids=["damaged", "missing"])
def test_a_log_that_cannot_be_read_is_reset_all_the_same(
    statekeep: CommandLine, job: Path, *, is_missing: bool
) -> None:
    logs = sorted(
        path
        for path in (job / "near" / "orders" / "main").rglob("*")
        if path.is_file() and b" commit " in path.read_bytes()[:40]
    )
    data = bytearray(logs[1].read_bytes())
    data[-10] ^= 0xFF
    logs[1].write_bytes(bytes(data))
    if is_missing:
        logs[1].unlink()
    assert statekeep(f"checkpoints list {LOG}").status == 3
    assert statekeep(f"reset {LOG} --yes").status == 0
    assert blobs(job) == set()
    assert asyncio.run(begin_anew(job)) == ({}, {})


def test_a_snapshot_is_shown_as_a_tree_of_its_files_and_deltas(
    statekeep: CommandLine, job: Path
) -> None:
    shown = statekeep(f"stores show {LOG} --json").json
    (task,) = shown["tasks"]
    assert task["name"] == TASK
    for store in task["parts"]:
        assert (store["name"], store["facts"]["backend"]) in [("counts", "near"), ("counts", "far")]
        parts = {part["name"]: part for part in store["parts"]}
        assert parts["image"]["bytes"] == sum(file["bytes"] for file in parts["image"]["parts"])
        for file in parts["image"]["parts"]:
            for blob in file["facts"]["blobs"]:
                assert (job / store["facts"]["backend"] / blob.partition("[")[0]).is_file()
    result = statekeep(f"stores show --store counts {LOG}")
    assert result.out.startswith("commit ")
    assert "image" in result.out
