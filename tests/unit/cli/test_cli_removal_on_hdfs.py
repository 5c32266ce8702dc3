"""``statekeep gc`` and ``reset`` on a backend that cleans up task by task."""

import asyncio
import shutil
from pathlib import Path

import pytest
from cli_kit import INPUT, TASK, CommandLine, job_settings

from statekeep.config.load import load_dict
from statekeep.container.container import Container

LOG = f"--task '{TASK}'"


@pytest.fixture
def on_hdfs(statekeep: CommandLine, job: Path) -> CommandLine:
    """The command line of a job with its state in files of the HDFS backend, in a local directory."""
    settings = job_settings(job) | {
        "job.name": "lineages",
        "stores.counts.backup.factories": "deltas",
        "backends.deltas.factory": "hdfs",
        "backends.deltas.uri": (job / "deltas").as_uri(),
        "backends.deltas.min.deltas.for.snapshot": "2",
    }
    unused = [key for key in settings if key.startswith(("backends.near", "backends.far"))]
    settings = {key: value for key, value in settings.items() if key not in unused}

    async def commit() -> None:
        async with Container(load_dict(settings)) as container:
            task = await container.start_task(TASK, ["counts"])
            for number in range(1, 5):
                task.store("counts").put(b"key-%d" % number, b"%d" % number)
                await (await task.commit({INPUT: str(number)}, force=True)).wait()

    asyncio.run(commit())
    lines = [f"{key}={value}" for key, value in settings.items()]
    statekeep.config.write_text("\n".join(lines), encoding="utf-8")
    return statekeep


def state_of(job: Path) -> set[str]:
    """Return the files that hold state, by their names."""
    paths = (job / "deltas").rglob("state-*/**/*")
    return {path.name for path in paths if path.is_file()}


def leave_behind(job: Path) -> set[str]:
    """Put files beside each upload as a late writer of its attempt would, and return their names."""
    left: set[str] = set()
    for path in [path for path in (job / "deltas").rglob("state-*/**/*") if path.is_file()]:
        file_id, dot, kind = path.name.partition(".")
        name = f"{file_id[:-4]}{'dead' if file_id[-4:] != 'dead' else 'beef'}{dot}{kind}"
        shutil.copyfile(path, path.with_name(name))
        left.add(name)
    return left


def planned(on_hdfs: CommandLine, line: str) -> set[str]:
    found = on_hdfs(f"{line} --dry-run {LOG} --json").json
    names = [name for part in found["leftovers"] for name in part["names"]]
    assert {part["task"] for part in found["leftovers"]} == {TASK}
    return {name.rpartition("/")[2] for name in names}


def test_a_dry_run_names_exactly_what_the_run_deletes(on_hdfs: CommandLine, job: Path) -> None:
    second = on_hdfs(f"checkpoints list {LOG} --json").json[2]
    assert on_hdfs(f"checkpoints remove {second['commit']} {LOG} --yes").status == 0
    kept = state_of(job)
    left = leave_behind(job)
    to_delete = planned(on_hdfs, "gc")
    # Whatever is newer than the newest closed attempt may belong to one that is still open.
    closed = f"_{second['epoch']:08x}{second['attempt']:08x}"
    assert to_delete == {name for name in left if name[name.index("_") :][:17] <= closed}
    assert 0 < len(to_delete) < len(left)
    assert state_of(job) == kept | left
    assert on_hdfs(f"gc {LOG}").status == 0
    assert state_of(job) == (kept | left) - to_delete
    assert planned(on_hdfs, "gc") == set()
    assert on_hdfs(f"verify {LOG}").status == 0


def test_a_reset_deletes_what_its_dry_run_names(on_hdfs: CommandLine, job: Path) -> None:
    before = state_of(job)
    assert before
    assert planned(on_hdfs, "reset") == before
    assert state_of(job) == before
    assert on_hdfs(f"reset {LOG} --yes").status == 0
    assert state_of(job) == set()
