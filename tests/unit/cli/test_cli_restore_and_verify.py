"""``statekeep verify`` and ``statekeep restore``."""

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from cli_kit import INPUT, TASK, CommandLine, commit_numbers, damage_a_blob, job_settings

from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.records import CommitRecord
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.config.load import load_dict
from statekeep.config.store_settings import StoreSettings
from statekeep.container.container import Container
from statekeep.inspection.job import InspectedJob
from statekeep.stores.factory import open_store
from statekeep.stores.rocksdb import RocksDbOptions, RocksDbStore

LOG = f"--task '{TASK}'"


def content(directory: Path, name: str = "counts") -> dict[bytes, bytes]:
    settings = StoreSettings(name=name)
    store = open_store(
        StoreName(name), settings.factory, directory, RocksDbOptions.of(settings), is_new=False
    )
    try:
        return dict(store.scan())
    finally:
        store.close()


def test_every_backend_of_a_commit_is_verified(statekeep: CommandLine) -> None:
    result = statekeep(f"verify {LOG} --json")
    assert result.status == 0
    assert [(row["backend"], row["error"]) for row in result.json] == [
        ("far", None),
        ("near", None),
    ]
    assert all(row["bytes"] > 0 for row in result.json)


def test_the_entries_of_each_copy_are_counted_on_demand(statekeep: CommandLine) -> None:
    assert [row["entries"] for row in statekeep(f"verify {LOG} --json").json] == [None, None]
    assert [row["entries"] for row in statekeep(f"verify {LOG} --count --json").json] == [4, 4]
    head, *rows = statekeep(f"verify {LOG} --count").out.splitlines()
    column = head.index("entries")
    assert [row[column:].split()[0] for row in rows if " fine" in row] == ["4", "4"]


def test_damage_is_found_in_the_backend_that_has_it(statekeep: CommandLine, job: Path) -> None:
    damage_a_blob(job / "far")
    result = statekeep(f"verify {LOG} --json")
    assert result.status == 3
    errors = {row["backend"]: row["error"] for row in result.json}
    assert errors["near"] is None
    assert "counts" in errors["far"]


def test_an_image_that_cannot_be_opened_is_found_though_its_digests_are_right(
    statekeep: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = RocksDbStore.checkpoint

    def without_manifest(self: RocksDbStore, directory: Path) -> None:
        checkpoint(self, directory)
        next(directory.glob("MANIFEST-*")).unlink()

    monkeypatch.setattr(RocksDbStore, "checkpoint", without_manifest)
    other = tmp_path / "other"
    asyncio.run(commit_numbers(other, [1]))
    lines = [f"{key}={value}" for key, value in job_settings(other).items()]
    statekeep.config.write_text("\n".join(lines), encoding="utf-8")
    result = statekeep(f"verify {LOG} --json")
    assert (result.status, [row["is-damaged"] for row in result.json]) == (3, [True, True])


@pytest.mark.parametrize("has_checkpoint", [False, True], ids=["no checkpoint", "no marker"])
def test_a_version_of_which_no_backend_holds_anything_is_damaged(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch, *, has_checkpoint: bool
) -> None:
    find_commit = InspectedJob.find_commit

    def without_markers(self: InspectedJob, which: str | None = None) -> tuple[int, CommitRecord]:
        position, commit = find_commit(self, which)
        checkpoint = self.checkpoint(commit, TaskName(TASK))
        assert checkpoint is not None
        bare = msgspec.Raw(encode_checkpoint_v2(replace(checkpoint, state_markers={})))
        checkpoints = {TASK: bare} if has_checkpoint else {}
        return position, msgspec.structs.replace(commit, checkpoints=checkpoints)

    monkeypatch.setattr(InspectedJob, "find_commit", without_markers)
    result = statekeep(f"verify {LOG} --json")
    (row,) = result.json
    assert (result.status, row["task"], row["is-damaged"]) == (3, TASK, True)
    assert "no backend holds anything of the version" in row["error"]


def test_a_backend_that_holds_nothing_of_the_commit_is_refused(statekeep: CommandLine) -> None:
    result = statekeep(f"verify {LOG} --backend elsewhere")
    assert result.status == 2
    assert "the settings list no such backend: backend=elsewhere" in result.err


@pytest.mark.parametrize("backend", ["near", "far"])
def test_a_commit_is_restored_to_a_directory_of_ones_own(
    statekeep: CommandLine, tmp_path: Path, backend: str
) -> None:
    result = statekeep(f"restore {tmp_path / 'mine'} {LOG} --backend {backend} --json")
    assert result.status == 0
    (row,) = result.json
    assert row["sources"] == {"counts": backend}
    assert content(Path(row["directory"]) / "counts" / "db") == {
        b"key-1": b"1",
        b"key-2": b"2",
        b"key-3": b"3",
        b"key-4": b"4",
    }


def test_an_older_commit_is_restored_as_it_was(statekeep: CommandLine, tmp_path: Path) -> None:
    old = statekeep(f"checkpoints list {LOG} --json").json[2]["commit"]
    (row,) = statekeep(f"restore {tmp_path / 'mine'} {old} {LOG} --json").json
    assert content(Path(row["directory"]) / "counts" / "db") == {b"key-1": b"1", b"key-2": b"2"}


def test_a_restore_without_any_whole_copy_fails_and_says_why(
    statekeep: CommandLine, job: Path, tmp_path: Path
) -> None:
    damage_a_blob(job / "near")
    damage_a_blob(job / "far")
    result = statekeep(f"restore {tmp_path / 'mine'} {LOG}")
    assert result.status == 3
    assert "no retained commit can be restored" in result.err
    assert "backend=near" in result.err
    assert "backend=far" in result.err


def two_stores(directory: Path, *, other: str) -> dict[str, str]:
    """A store ``a`` in one backend, a store ``b`` in another one or, by a dash, nowhere."""
    return job_settings(directory) | {
        "job.name": "mixed",
        "stores.a.backup.factories": "near",
        "stores.b.backup.factories": "" if other == "-" else other,
    }


def commit_two_stores(directory: Path, *, other: str) -> str:
    """Commit a task of such a job once, and return the options that name it."""
    settings = two_stores(directory, other=other)

    async def run() -> None:
        async with Container(load_dict(settings)) as container:
            task = await container.start_task(TASK, ["a", "b"])
            for name in "ab":
                task.store(name).put(b"key", name.encode())
            await (await task.commit({INPUT: "1"}, force=True)).wait()

    asyncio.run(run())
    config = directory / "mixed.properties"
    lines = [f"{key}={value}" for key, value in settings.items()]
    config.write_text("\n".join(lines), encoding="utf-8")
    return f"{LOG} --config '{config}'"


@pytest.mark.parametrize(
    ("other", "backends"), [("far", ["far", "near"]), ("-", ["near"])], ids=["elsewhere", "nowhere"]
)
def test_a_store_that_a_backend_never_held_is_no_damage_there(
    statekeep: CommandLine, job: Path, other: str, backends: list[str]
) -> None:
    options = commit_two_stores(job, other=other)
    result = statekeep(f"verify {options} --json", has_config=False)
    assert [(row["backend"], row["error"]) for row in result.json] == [
        (backend, None) for backend in backends
    ]
    assert result.status == 0


def test_damage_is_reported_of_a_backend_that_holds_only_some_stores(
    statekeep: CommandLine, job: Path
) -> None:
    options = commit_two_stores(job, other="far")
    damage_a_blob(job / "far" / "mixed")
    result = statekeep(f"verify {options} --json", has_config=False)
    assert [(row["backend"], bool(row["error"])) for row in result.json] == [
        ("far", True),
        ("near", False),
    ]
    assert result.status == 3


def test_a_store_that_no_backend_has_though_the_settings_name_one_is_reported(
    statekeep: CommandLine, job: Path
) -> None:
    options = commit_two_stores(job, other="-")
    result = statekeep(
        f"verify {options} --set stores.b.backup.factories=near --json", has_config=False
    )
    (row,) = result.json
    assert "store=b" in row["error"]
    assert "no backend has it" in row["error"]
    assert row["is-damaged"]
    assert result.status == 3


def test_a_backend_that_lacks_a_store_that_is_to_be_backed_up_there_is_reported(
    statekeep: CommandLine, job: Path
) -> None:
    options = commit_two_stores(job, other="near")
    both = " ".join(f"--set stores.{store}.backup.factories=near,far" for store in "ab")
    line = f"verify {options} {both} --backend far"
    result = statekeep(line, has_config=False)
    assert "commit has no marker of the backend" in result.err
    assert result.status == 2

    commit_two_stores(job, other="near,far")
    (whole, lacking) = statekeep(f"{line} --json", has_config=False).json
    assert (whole["backend"], whole["error"], whole["bytes"] > 0) == ("far", None, True)
    assert (lacking["backend"], lacking["is-damaged"]) == ("far", True)
    assert "stores=a" in lacking["error"]
    assert statekeep(line, has_config=False).status == 3
    assert statekeep(f"verify {options} {both}", has_config=False).status == 0


def test_a_restore_from_one_backend_says_which_stores_it_leaves_out(
    statekeep: CommandLine, job: Path
) -> None:
    options = commit_two_stores(job, other="far")
    line = f"restore {job / 'mine'} {options} --backend near"
    (row,) = statekeep(f"{line} --json", has_config=False).json
    assert (row["sources"], row["left-out"]) == ({"a": "near"}, ["b"])
    told = statekeep(line, has_config=False).out.splitlines()
    assert [told[0].split()[2:4], told[1].split()[4]] == [["left", "out"], "b"]
    assert content(Path(row["directory"]) / "a" / "db", "a") == {b"key": b"a"}


def test_a_restore_leaves_no_store_out_because_an_earlier_one_did(
    statekeep: CommandLine, job: Path
) -> None:
    options = commit_two_stores(job, other="far")
    assert (
        statekeep(f"restore {job / 'mine'} {options} --backend near", has_config=False).status == 0
    )
    again = statekeep(f"restore {job / 'mine'} {options}", has_config=False)
    assert (again.status, "without some of its stores" in again.err) == (2, True)
    assert "stores=b" in again.err


def test_a_backend_that_holds_nothing_of_a_task_restores_nothing(
    statekeep: CommandLine, job: Path
) -> None:
    options = commit_two_stores(job, other="-")
    result = statekeep(f"restore {job / 'mine'} {options} --backend far", has_config=False)
    assert (result.status, f"no marker of the backend: task={TASK}" in result.err) == (2, True)
    assert not (job / "mine").exists()
