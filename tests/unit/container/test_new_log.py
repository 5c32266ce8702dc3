"""A task begins with empty state only if it is new: never because its log was looked for elsewhere."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from outage_kit import cut_off, plan_of

from statekeep.backends.base import TaskIdentity
from statekeep.backends.memory import forget_place
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.storage.memory import forget_root
from statekeep.checkpoint.checkpoints import (
    CheckpointId,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.log_reset import reset_log
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.names import MAIN_OPERATOR, task_scope
from statekeep.clock import SystemClock
from statekeep.commit.task_log import take_over_task
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import ConfigError, RetriableError
from statekeep.fault_points import fault_handler
from statekeep.inspection.log_move import move_log
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

INPUT = SystemStreamPartition("gen", "numbers", 0)
TASK = "Partition 0"
SCOPE = task_scope("job", MAIN_OPERATOR, TASK)


def config(
    directory: Path,
    backup: str,
    *,
    log: str | None = None,
    kinds: Mapping[str, str] | None = None,
    **settings: str,
) -> Config:
    """A job whose backends are the folders that their names say, blobs unless ``kinds`` says more."""
    values = {
        "job.name": "job",
        "job.logged.store.base.dir": str(directory / "local"),
        "stores.default.factory": "memory",
        "stores.backup.factories": backup,
    }
    if log is not None:
        values["job.log.backend"] = log
    for name in {*backup.split(","), *([] if log is None else [log])}:
        values[f"backends.{name}.factory"] = (kinds or {}).get(name, "blob")
        values[f"backends.{name}.uri"] = (directory / name).as_uri()
    return load_dict(values | {key.replace("__", "."): value for key, value in settings.items()})


async def count(job: Config, task: str = TASK) -> int:
    """Start the task, count one more, commit, and return the count."""
    async with Container(job) as container:
        started = await container.start_task(task, ["counts"])
        counts = started.store("counts")
        number = int(counts.get(b"k") or 0) + 1
        assert started.input_offsets == ({INPUT: str(number - 1)} if number > 1 else {})
        counts.put(b"k", b"%d" % number)
        await (await started.commit({INPUT: str(number)}, force=True)).wait()
        return number


def records(place: Path) -> list[Path]:
    return list(place.glob("job/main/*/log/*"))


async def move(directory: Path, source: str, target: str) -> None:
    registry = BackendRegistry(config(directory, f"{source},{target}"))
    executor, clock = SerialExecutor(), SystemClock()
    old = registry.factory(source).job_log(SCOPE, executor, clock)
    new = registry.factory(target).job_log(SCOPE, executor, clock)
    await move_log(old, new, target, owner="test")


@pytest.mark.asyncio
@pytest.mark.parametrize("log", [None, "new"])
async def test_a_start_that_finds_the_log_in_another_listed_backend_is_refused(
    tmp_path: Path, log: str | None
) -> None:
    assert await count(config(tmp_path, "old")) == 1
    before = sorted((tmp_path / "old").rglob("*"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="backend=new found_in=old") as caught:
            await count(config(tmp_path, "new,old", log=log))
        assert "set job.log.backend=old" in caught.value.hints[0]
    assert records(tmp_path / "new") == []
    assert sorted((tmp_path / "old").rglob("*")) == before
    assert await count(config(tmp_path, "new,old", log="old")) == 2


@pytest.mark.asyncio
async def test_a_log_is_looked_for_where_other_stores_are_backed_up_too(tmp_path: Path) -> None:
    await count(config(tmp_path, "old"))
    job = config(tmp_path, "new,old", stores__backup__factories="new")
    listed = load_dict(job.as_dict() | {"stores.ledger.backup.factories": "old"})
    with pytest.raises(ConfigError, match="found_in=old"):
        await count(listed)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["blob", "hdfs"])
async def test_a_start_that_finds_state_but_no_log_is_refused(tmp_path: Path, kind: str) -> None:
    kinds = {"new": kind}
    await count(config(tmp_path, "old,new", kinds=kinds))
    with pytest.raises(
        ConfigError, match=r"found_in=new location=job/state-\w+/new/main/Partition_0/"
    ):
        await count(config(tmp_path, "new", kinds=kinds))
    assert records(tmp_path / "new") == []
    assert await count(config(tmp_path, "new", log="old", kinds=kinds)) == 2


@pytest.mark.asyncio
async def test_another_task_of_a_job_begins_beside_the_state_of_the_first(tmp_path: Path) -> None:
    job = config(tmp_path, "near,far")
    assert [await count(job), await count(job, "Partition 1"), await count(job)] == [1, 1, 2]


@pytest.mark.asyncio
async def test_what_another_owner_has_just_begun_is_no_reason_to_refuse(tmp_path: Path) -> None:
    factory = BackendRegistry(config(tmp_path, "old")).factory("old")
    log = factory.job_log(SCOPE, SerialExecutor(), SystemClock())
    own = LogSession(log)

    async def refuse_once_another_has_committed() -> None:
        await count(config(tmp_path, "old"))
        raise ConfigError("there is state")

    await take_over_task(
        own,
        TaskIdentity("job", MAIN_OPERATOR, TaskName(TASK)),
        [StoreName("counts")],
        owner="test",
        checkpoint_id=CheckpointId.at(1),
        check_new=refuse_once_another_has_committed,
    )
    assert (own.epoch, len(own.view.commits)) == (2, 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("point", ["take_over.before_epoch", "take_over.before_base"])
async def test_a_first_start_that_was_killed_is_no_reason_to_refuse(
    tmp_path: Path, point: str
) -> None:
    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    with fault_handler(die), pytest.raises(KeyboardInterrupt):
        await count(config(tmp_path, "old"))
    assert await count(config(tmp_path, "new,old")) == 1


@pytest.mark.asyncio
async def test_a_log_that_was_reset_is_no_reason_to_refuse(tmp_path: Path) -> None:
    await count(config(tmp_path, "old"))
    factory = BackendRegistry(config(tmp_path, "old")).factory("old")
    await reset_log(factory.job_log(SCOPE, SerialExecutor(), SystemClock()), "test")
    shutil.rmtree(next((tmp_path / "old" / "job").glob("state-*")))
    assert await count(config(tmp_path, "new,old")) == 1


@pytest.mark.asyncio
async def test_a_moved_log_leads_to_where_it_is(tmp_path: Path) -> None:
    await count(config(tmp_path, "old"))
    await move(tmp_path, "old", "new")
    with pytest.raises(ConfigError, match="backend=third found_in=new"):
        await count(config(tmp_path, "third,old"))
    assert await count(config(tmp_path, "new,old")) == 2


@pytest.mark.asyncio
async def test_what_a_moved_log_has_left_behind_does_not_keep_a_job_from_beginning_anew(
    tmp_path: Path,
) -> None:
    await count(config(tmp_path, "old"))
    await move(tmp_path, "old", "new")
    shutil.rmtree(tmp_path / "new")
    shutil.rmtree(next((tmp_path / "old" / "job").glob("state-*")))
    assert await count(config(tmp_path, "new,old")) == 1


@pytest.mark.asyncio
async def test_a_backend_that_was_emptied_begins_anew_beside_a_local_disk_that_was_kept(
    tmp_path: Path,
) -> None:
    await count(config(tmp_path, "old"))
    shutil.rmtree(tmp_path / "old")
    assert await count(config(tmp_path, "old")) == 1


@pytest.mark.asyncio
async def test_a_log_in_memory_may_be_empty_beside_state_that_lasts(tmp_path: Path) -> None:
    settings = config(tmp_path, "old").as_dict() | {
        "stores.backup.factories": "swift,old",
        "backends.swift.factory": "memory",
        "backends.swift.place": str(tmp_path),
    }
    job = load_dict(settings)
    assert await count(job) == 1
    forget_place(str(tmp_path))
    assert await count(job) == 1
    forget_place(str(tmp_path))


def job_with_an_outage(directory: Path) -> Config:
    """The optional backend ``far`` does not answer."""
    cut_off(str(directory / "far"))
    job = config(directory, "near,far", stores__backup__optional="far").as_dict()
    for name in ("near", "far"):
        job[f"backends.{name}.factory"] = "outage_kit:OutageBackendFactory"
        job[f"backends.{name}.uri"] = str(directory / name)
    return load_dict(job)


@pytest.mark.asyncio
async def test_a_backend_that_may_hold_the_log_has_to_answer_before_a_task_begins_anew(
    tmp_path: Path,
) -> None:
    job = job_with_an_outage(tmp_path)
    async with Container(job, clock=FakeClock()) as container:
        with pytest.raises(RetriableError, match="does not answer: backend=far"):
            await container.start_task(TASK, ["counts"])
        plan_of(str(tmp_path / "far")).clear()
    async with Container(job, clock=FakeClock()) as container:
        await container.start_task(TASK, ["counts"])
    for name in ("near", "far"):
        forget_root(str(tmp_path / name))


@pytest.mark.asyncio
async def test_a_task_begins_without_an_optional_backend_if_the_settings_name_the_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = load_dict(job_with_an_outage(tmp_path).as_dict() | {"job.log.backend": "near"})
    async with Container(job, clock=FakeClock()) as container:
        await container.start_task(TASK, ["counts"])
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [text for text in warned if "not searched" in text and text.endswith("backend=far")]
    for name in ("near", "far"):
        forget_root(str(tmp_path / name))
