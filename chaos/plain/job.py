"""The job that is put through a schedule: a plain-Python container with tasks that count.

Everything that it claims goes into its journal, so that a verifier can hold the job to it: with
what state each task started, which commits it began, which it took for durable.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from typing_extensions import override

from chaos.backends import Place
from chaos.plain.fault_profile import MANAGER, set_forecast
from chaos.plain.records import changes_of, shown
from chaos.plain.s3_fault_profile import faulty_endpoint
from chaos.plain.schedule import Life, Schedule, happens
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.container.task_commits import TaskCommit
from statekeep.errors import CommitFailedError, StateBackupError, TaskFencedError

JOB: Final = "chaos"
INPUT: Final = SystemStreamPartition("numbers", "input", 0)
_NS_PER_DAY: Final = 86_400 * 1_000_000_000

T = TypeVar("T")

Journal = Callable[[Mapping[str, object]], None]


class SkewedClock(SystemClock):
    """The machine's clock with a wall clock that is some days off."""

    def __init__(self, days: int) -> None:
        self._skew_ns = days * _NS_PER_DAY

    @override
    def time_ns(self) -> int:
        return super().time_ns() + self._skew_ns


@dataclass(frozen=True, slots=True)
class Job:
    """One life of the job of a schedule."""

    schedule: Schedule
    life: Life
    places: Sequence[Place]
    directory: Path
    journal: Journal
    name: str = JOB

    async def run(self) -> None:
        """Go on from the last commit to the end of this life; errors are noted, not raised."""
        places = {place.name: str(place.directory) for place in self.places}
        set_forecast({f"file://{places[b]}": kind for b, kind in self.life.profile.items()})
        try:
            clock = SkewedClock(self.life.clock_days)
            async with (
                self._endpoints() as endpoints,
                Container(self._config(endpoints), clock=clock) as container,
            ):
                names, stores = self.schedule.tasks, tuple(self.schedule.stores)
                tasks = await _all_or_first_error(
                    [container.start_task(name, stores) for name in names]
                )
                for task in tasks:
                    self._note_start(task, stores)
                await _all_or_first_error([self._drive(task, stores) for task in tasks])
        except* TaskFencedError:
            self.journal({"event": "fenced"})
        except* (StateBackupError, OSError) as group:
            self.journal(
                {"event": "failed", "error": _describe(group), "errors": list(_kinds(group))}
            )

    @asynccontextmanager
    async def _endpoints(self) -> AsyncGenerator[Mapping[str, str]]:
        """Give the settings that lead to S3 servers through their fault profile."""
        async with AsyncExitStack() as stack:
            settings: dict[str, str] = {}
            for place in self.places:
                profile = self.life.profile.get(place.name)
                if place.kind == "blob-s3" and profile is not None:
                    seed = f"{self.schedule.seed}/{self.life.name}/{place.name}"
                    relay = faulty_endpoint(place.server.address, profile, seed)
                    endpoint = await stack.enter_async_context(relay)
                    settings[f"backends.{place.name}.s3.endpoint"] = endpoint
            yield settings

    def _config(self, endpoints: Mapping[str, str]) -> Config:
        settings: dict[str, str] = {
            "job.name": self.name,
            "job.logged.store.base.dir": str(self.directory / self.life.local),
            "stores.backup.factories": ",".join(place.name for place in self.places),
            **self.schedule.settings,
        }
        if self.life.is_calm:
            settings["task.commit.timeout.ms"] = settings["task.shutdown.ms"] = "10000"
        # A backend that is restored from alone cannot be optional.
        if self.schedule.optional != self.life.restore_from:
            settings["stores.backup.optional"] = self.schedule.optional
        if self.life.restore_from:
            settings["stores.restore.factories"] = self.life.restore_from
        for store, engine in self.schedule.stores.items():
            settings[f"stores.{store}.factory"] = engine
        for place in self.places:
            settings.update(place.settings())
            if place.kind == "blob":
                settings[f"backends.{place.name}.manager.factory"] = MANAGER
        return load_dict(settings | dict(endpoints))

    def _note_start(self, task: Task, stores: Sequence[str]) -> None:
        content = {
            name: {key.decode(): shown(value) for key, value in task.store(name).scan()}
            for name in stores
        }
        self.journal(
            {
                "event": "started",
                "task": task.name,
                "epoch": task.epoch,
                "offset": _offset_of(task),
                "content": content,
                "sources": dict(task.restored.sources),
                "restore_from": self.life.restore_from,
                "damaged_sources": sorted(
                    {f.backend for f in task.restored.failures if f.is_marker_bad}
                ),
                "failed_sources": sorted(
                    {name for f in task.restored.failures for name in f.backend.split(",")}
                ),
            }
        )

    async def _drive(self, task: Task, stores: tuple[str, ...]) -> None:
        draw = random.Random(f"{self.schedule.seed}/{self.life.name}/{task.name}")  # noqa: S311 - drawn from the seed
        eagerness = 1.0 if self.schedule.is_eager else draw.choice((0.1, 0.3, 0.6))
        commits: list[tuple[int, TaskCommit]] = []
        for number in range(_offset_of(task) + 1, self.life.until + 1):
            self._process(task, number, stores)
            if task.is_commit_due() or draw.random() < eagerness:
                commit = await self._commit(
                    task, number, is_forced=happens(draw, 0.3 + eagerness / 2)
                )
                commits.append((number, commit))
                if happens(draw, 0.4):
                    await self._settle(task, commits)
            elif happens(draw, 0.3):
                await asyncio.sleep(0)
            await self._note_ended(task, commits)
        if self.life.is_calm:
            commits.append((self.life.until, await self._commit(task, self.life.until)))
        await self._settle(task, commits)
        if self.life.is_calm:
            await task.wait()

    def _process(self, task: Task, number: int, stores: tuple[str, ...]) -> None:
        for change in changes_of(self.schedule.seed, task.name, number, stores):
            store = task.store(change.store)
            if change.addend is None:
                store.delete(change.key)
            else:
                store.put(change.key, b"%d" % (int(store.get(change.key) or 0) + change.addend))
        large = self.schedule.large
        if large is not None and (large.task, large.number) == (task.name, number):
            task.store(large.store).put(large.key, large.value)

    async def _commit(self, task: Task, number: int, *, is_forced: bool = True) -> TaskCommit:
        self.journal({"event": "begun", "task": task.name, "offset": number})
        return await task.commit({INPUT: str(number)}, force=is_forced)

    async def _settle(self, task: Task, commits: list[tuple[int, TaskCommit]]) -> None:
        """Wait for the newest commit; one that failed is tolerated if the job tolerates it."""
        if commits:
            with suppress(CommitFailedError):
                await commits[-1][1].wait()
        await self._note_ended(task, commits)

    async def _note_ended(self, task: Task, commits: list[tuple[int, TaskCommit]]) -> None:
        """Note what became of each commit that has ended."""
        for number, commit in [entry for entry in commits if entry[1].done()]:
            note = {"task": task.name, "offset": number, "epoch": task.epoch}
            try:
                checkpoint = await commit.wait()
            except CommitFailedError as exc:
                self.journal({"event": "commit-failed", **note, "step": exc.step})
                if self.life.is_calm:
                    raise
                continue
            if checkpoint is not None:
                identity = checkpoint.checkpoint_id.serialize()
                self.journal({"event": "acknowledged", **note, "checkpoint": identity})
        commits[:] = [entry for entry in commits if not entry[1].done()]


def _offset_of(task: Task) -> int:
    return int(task.input_offsets.get(INPUT, "-1"))


async def _all_or_first_error(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(call) for call in calls]
    return [task.result() for task in running]


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_describe, error.exceptions))
    cause = f" from {_describe(error.__cause__)}" if error.__cause__ is not None else ""
    return f"{type(error).__name__}: {error}{cause}"


def _kinds(error: BaseException) -> Iterator[Mapping[str, object]]:
    """Tell of each error in a group whether it is one of ours, and says what to do."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _kinds(inner)
        return
    is_ours = isinstance(error, StateBackupError)
    yield {
        "type": type(error).__name__,
        "text": str(error)[:500],
        "is_ours": is_ours,
        "has_hint": isinstance(error, StateBackupError) and bool(error.hints),
    }
