"""``statekeep savepoint`` and ``statekeep migrate``."""

import asyncio
import io
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_kit import INPUT, TASK, CommandLine, commit_numbers, job_settings
from encoded_kit import full_index

from statekeep.backends.blob.index import SnapshotIndex
from statekeep.checkpoint.checkpoints import CheckpointV2
from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.exit_status import ExitStatus
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.errors import TaskFencedError
from statekeep.inspection import recommit
from statekeep.inspection.job import open_job
from statekeep.inspection.state_copy import CommitBackups

LOG = f"--task '{TASK}'"


def settings_of_third(directory: Path) -> str:
    return (
        "--set backends.third.factory=hdfs "
        f"--set backends.third.uri={(directory / 'third').as_uri()}"
    )


def current(statekeep: CommandLine) -> Any:
    return statekeep(f"checkpoints show {LOG} --json").json


def index_of(directory: Path, marker: str) -> SnapshotIndex:
    (path,) = directory.rglob(marker.rpartition("/")[2])
    return full_index(path.read_bytes(), where=marker)


async def content_after_start(settings: dict[str, str]) -> tuple[str, dict[bytes, bytes]]:
    async with Container(load_dict(settings)) as container:
        task = await container.start_task(TASK, ["counts"])
        return task.input_offsets[INPUT], dict(task.store("counts").scan())


def test_migration_adds_the_markers_of_another_backend_and_keeps_the_rest(
    statekeep: CommandLine, job: Path
) -> None:
    before = current(statekeep)
    result = statekeep(f"migrate --to third {LOG} {settings_of_third(job)} --yes --json")
    assert result.status == 0
    after = current(statekeep)
    assert result.json == [
        {
            "log": TASK,
            "commit": after["commit"],
            "tasks": 1,
            "backends": ["third"],
            "bytes": result.json[0]["bytes"],
        }
    ]
    old, new = before["tasks"][TASK], after["tasks"][TASK]
    assert (new["version"], new["input-offsets"]) == (old["version"], old["input-offsets"])
    assert new["markers"] == {**old["markers"], "third": new["markers"]["third"]}
    assert after["batch"] == before["batch"]


def test_a_migration_knows_what_it_will_upload_before_it_begins(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(CountingBar, "expect", lambda _, size: seen.append(("expected", size)))
    monkeypatch.setattr(CountingBar, "add", lambda _, size: seen.append(("sent", size)))
    third = settings_of_third(job).replace("factory=hdfs", "factory=blob")
    statekeep(f"migrate --to third {LOG} {third} --yes")
    (first, expected), *sent = seen
    assert (first, {what for what, _ in sent}) == ("expected", {"sent"})
    assert 0 < expected <= sum(size for _, size in sent)


def test_the_job_starts_from_the_new_backend_alone_after_a_migration(
    statekeep: CommandLine, job: Path
) -> None:
    expected = asyncio.run(content_after_start(job_settings(job)))
    statekeep(f"migrate --to third {LOG} {settings_of_third(job)} --yes")
    moved = job_settings(job) | {
        "job.logged.store.base.dir": str(job / "other-disk"),
        "stores.counts.backup.factories": "third",
        "backends.third.factory": "hdfs",
        "backends.third.uri": (job / "third").as_uri(),
        "job.log.backend": "near",
    }
    del moved["backends.far.factory"], moved["backends.far.uri"]
    assert asyncio.run(content_after_start(moved)) == expected


@pytest.mark.parametrize("old", ["near", "far"])
def test_the_job_starts_from_an_old_backend_alone_after_a_migration(
    statekeep: CommandLine, job: Path, old: str
) -> None:
    expected = asyncio.run(content_after_start(job_settings(job)))
    statekeep(f"migrate --to third {LOG} {settings_of_third(job)} --yes")
    shutil.rmtree(job / "third")
    back = job_settings(job) | {
        "job.logged.store.base.dir": str(job / "other-disk"),
        "stores.counts.backup.factories": old,
        "job.log.backend": "near",
    }
    if old == "near":
        del back["backends.far.factory"], back["backends.far.uri"]
    assert asyncio.run(content_after_start(back)) == expected


def test_a_migration_that_is_fenced_on_the_way_says_so_and_changes_nothing(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up = CommitBackups.back_up

    async def back_up_and_start_the_job(self: CommitBackups, *args: Any) -> CheckpointV2:
        made = await back_up(self, *args)
        await commit_numbers(job, [5])
        return made

    monkeypatch.setattr(CommitBackups, "back_up", back_up_and_start_the_job)
    result = statekeep(f"migrate --to third {LOG} {settings_of_third(job)} --yes")
    assert (result.status, "taken over" in result.err) == (ExitStatus.FENCED, True)
    assert "third" not in current(statekeep)["tasks"][TASK]["markers"]
    assert asyncio.run(content_after_start(job_settings(job)))[0] == "5"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_migration_that_is_interrupted_may_be_made_again(
    statekeep: CommandLine,
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    before = current(statekeep)
    line = f"migrate --to third {LOG} {settings_of_third(job)} --yes"
    # Where the tests run in the background of a shell, the signal is ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))

    async def interrupt(_self: CommitBackups, *_args: Any) -> CheckpointV2:
        signal.raise_signal(signal.SIGINT)
        return await asyncio.Event().wait()  # type: ignore[return-value]  # it is cancelled

    with monkeypatch.context() as patched:
        patched.setattr(CommitBackups, "back_up", interrupt)
        assert statekeep(line).status == 130
    assert current(statekeep) == before
    assert statekeep(line).status == 0
    assert "third" in current(statekeep)["tasks"][TASK]["markers"]


def test_a_job_that_still_runs_is_fenced_by_a_migration(statekeep: CommandLine, job: Path) -> None:
    async def run() -> None:
        async with Container(load_dict(job_settings(job))) as container:
            task = await container.start_task(TASK, ["counts"])
            line = f"migrate --to third {LOG} {settings_of_third(job)} --yes"
            await asyncio.to_thread(statekeep, line)
            task.store("counts").put(b"key-1", b"zombie")
            with pytest.raises(TaskFencedError):
                await (await task.commit({INPUT: "99"}, force=True)).wait()

    asyncio.run(run())
    assert asyncio.run(content_after_start(job_settings(job)))[0] == "4"


def test_without_a_yes_nothing_is_copied(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    before = statekeep(f"events {LOG} --json").json
    assert statekeep(f"migrate --to third {LOG} {settings_of_third(job)}").status != 0
    assert statekeep(f"events {LOG} --json").json == before


def test_a_migration_that_fails_leaves_the_newest_commit_as_it_is(
    statekeep: CommandLine, job: Path
) -> None:
    before = current(statekeep)
    (job / "third").write_text("not a directory", encoding="utf-8")
    assert statekeep(f"migrate --to third {LOG} {settings_of_third(job)} --yes").status != 0
    assert current(statekeep) == before


def test_every_task_of_a_job_in_plain_python_is_named(statekeep: CommandLine, job: Path) -> None:
    result = statekeep(
        f"migrate --to third {LOG} --task 'Partition 7' {settings_of_third(job)} --yes"
    )
    assert result.status == 2
    assert "task=Partition 7" in result.err
    assert "third" not in current(statekeep)["tasks"][TASK]["markers"]


def test_a_savepoint_shares_no_blob_with_any_other_commit(
    statekeep: CommandLine, job: Path
) -> None:
    statekeep(f"savepoint create v1 {LOG} --yes")
    shown = current(statekeep)
    assert shown["pins"] == ["v1"]
    attempt = f"/{shown['epoch']}-{shown['attempt']}/"
    for backend in ("near", "far"):
        index = index_of(job / backend, shown["tasks"][TASK]["markers"][backend]["counts"])
        assert index.blob_ids()
        assert all(attempt in blob_id for blob_id in index.blob_ids())
        assert not index.deltas


def test_a_savepoint_outlives_retention_until_it_is_dropped(
    statekeep: CommandLine, job: Path
) -> None:
    statekeep(f"savepoint create v1 {LOG} --yes")
    (row,) = statekeep(f"savepoint list {LOG} --json").json
    assert (row["savepoint"], row["batch"]) == ("v1", current(statekeep)["batch"])

    asyncio.run(commit_numbers(job, [5, 6, 7, 8], retained=2))
    assert statekeep(f"verify v1 {LOG}").status == 0
    (later,) = statekeep(f"savepoint list {LOG} --json").json
    assert later["records"] > row["records"] + 8

    statekeep(f"savepoint drop v1 {LOG}")
    assert statekeep(f"savepoint list {LOG} --json").json == []
    asyncio.run(commit_numbers(job, [9, 10], retained=2))
    assert statekeep(f"checkpoints show {row['commit']} {LOG}").status == 2


def test_a_savepoint_survives_the_loss_of_every_other_blob(
    statekeep: CommandLine, job: Path
) -> None:
    statekeep(f"savepoint create v1 {LOG} --yes")
    shown = current(statekeep)
    attempt = f"{shown['epoch']}-{shown['attempt']}"
    for path in list((job / "near").rglob("state-*/**/*")):
        if path.is_file() and path.parent.name != attempt:
            path.unlink()
    assert statekeep(f"verify v1 --backend near {LOG}").status == 0


def test_a_name_that_is_in_use_is_refused_before_anyone_is_fenced(
    statekeep: CommandLine,
) -> None:
    statekeep(f"savepoint create v1 {LOG} --yes")
    before = statekeep(f"events {LOG} --json").json
    result = statekeep(f"savepoint create v1 {LOG} --yes")
    assert (result.status, "the name is in use: name=v1" in result.err) == (2, True)
    assert statekeep(f"events {LOG} --json").json == before


def test_a_backend_that_forgets_old_commits_holds_no_savepoint(statekeep: CommandLine) -> None:
    result = statekeep(
        f"savepoint create v1 {LOG} --yes --set stores.counts.backup.factories=kafka "
        "--set job.log.backend=near --set kafka.bootstrap.servers=127.0.0.1:1"
    )
    assert result.status == 2
    assert "no backend of the job keeps old commits: backends=kafka" in result.err


def test_a_savepoint_is_not_put_where_later_commits_overwrite_it(
    statekeep: CommandLine, job: Path
) -> None:
    before = statekeep(f"events {LOG} --json").json
    result = statekeep(
        f"savepoint create v1 {LOG} --yes --to far --to third "
        "--set backends.third.factory=live_savepoint_kit:ForgetfulFactory "
        f"--set backends.third.uri={(job / 'third').as_uri()}"
    )
    assert (result.status, "keeps no old commits" in result.err) == (2, True)
    assert "backend=third" in result.err
    assert statekeep(f"events {LOG} --json").json == before


@pytest.mark.parametrize("name", ["7", "1700000000123-456789", "read-0123456789ab"])
def test_a_name_that_means_something_else_is_refused(statekeep: CommandLine, name: str) -> None:
    before = statekeep(f"events {LOG} --json").json
    for line in (f"savepoint create {name} {LOG} --yes", f"checkpoints pin {name} {LOG}"):
        result = statekeep(line)
        assert (result.status, "no commit can be kept under this name" in result.err) == (2, True)
    assert statekeep(f"events {LOG} --json").json == before


def test_a_name_counts_before_a_position(statekeep: CommandLine, job: Path) -> None:
    older, _, newer = [
        row["commit"] for row in statekeep(f"checkpoints list {LOG} --json").json[-3:]
    ]

    async def pin_as_older_releases_did() -> None:
        config = load_dict(job_settings(job))
        async with open_job(config, SystemClock(), task=TASK) as opened:
            await opened.pin_writer.pin(str(older), newer)

    asyncio.run(pin_as_older_releases_did())
    assert statekeep(f"checkpoints show {older} {LOG} --json").json["commit"] == newer


def test_a_name_that_is_taken_meanwhile_is_refused_before_anything_is_copied(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = current(statekeep)

    async def pin_meanwhile(*_: object) -> None:
        await asyncio.to_thread(statekeep, f"checkpoints pin v1 {shown['commit']} {LOG}")

    monkeypatch.setattr(recommit, "prepare_backends", pin_meanwhile)
    result = statekeep(f"savepoint create v1 {LOG} --yes")
    assert result.status == 2
    assert current(statekeep)["commit"] == shown["commit"]
    assert current(statekeep)["pins"] == ["v1"]


def test_a_savepoint_of_several_tasks_is_ended_by_the_same_command(
    statekeep: CommandLine, job: Path
) -> None:
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    both = f"{LOG} --task 'Partition 1'"
    statekeep(f"savepoint create v1 {LOG} --yes")
    first = current(statekeep)["commit"]
    result = statekeep(f"savepoint create v1 {both} --yes --json")
    assert [(row["log"], row["tasks"]) for row in result.json] == [(TASK, 0), ("Partition 1", 1)]
    assert current(statekeep)["commit"] == first
    again = statekeep(f"savepoint create v1 {both} --yes")
    assert (again.status, "the name is in use" in again.err) == (2, True)


def test_a_name_of_an_older_commit_of_one_task_stops_the_savepoint_of_all(
    statekeep: CommandLine, job: Path
) -> None:
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    statekeep("savepoint create v1 --task 'Partition 1' --yes")
    asyncio.run(commit_numbers(job, [3], name="Partition 1"))
    before = statekeep(f"events {LOG} --json").json
    result = statekeep(f"savepoint create v1 {LOG} --task 'Partition 1' --yes")
    assert (result.status, "the name is in use" in result.err) == (2, True)
    assert statekeep(f"events {LOG} --json").json == before


def test_a_savepoint_of_several_tasks_is_dropped_where_it_is_left(
    statekeep: CommandLine, job: Path
) -> None:
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    both = f"{LOG} --task 'Partition 1'"
    statekeep(f"savepoint create v1 {both} --yes")
    statekeep(f"savepoint drop v1 {LOG}")
    assert statekeep(f"savepoint drop v1 {both}").status == 0
    assert statekeep(f"savepoint list {both} --json").json == []
    assert statekeep(f"savepoint drop v1 {both}").status == 2
