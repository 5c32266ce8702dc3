"""Entries of tasks whose uploads end at about the same time are written together."""

import asyncio
from collections.abc import Mapping

import pytest
from committer_kit import new_rig
from log_kit import new_blobs
from typing_extensions import override

from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.errors import RetriableError
from statekeep.spark.sidecar.work import EntryWriter
from statekeep.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio
NAMES = [TaskName(f"Partition {number}") for number in range(4)]


class HeldClock(FakeClock):
    """Lets no time pass but when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[asyncio.Event] = []

    @override
    async def sleep(self, seconds: float) -> None:
        turn = asyncio.Event()
        self.turns.append(turn)
        await turn.wait()
        self.advance(seconds)

    async def pass_all(self) -> None:
        """Let everybody wake who sleeps now."""
        await settle()
        turns, self.turns = self.turns, []
        for turn in turns:
            turn.set()
        await settle()


class NotedStore(BlobCheckpointStore):
    """Notes what is written together; may fail."""

    def __init__(self) -> None:
        super().__init__(new_blobs(), "job")
        self.packs: list[tuple[str, list[TaskName]]] = []
        self.error: Exception | None = None

    @override
    async def write_all(self, attempt: str, entries: Mapping[TaskName, bytes]) -> None:
        self.packs.append((attempt, sorted(entries)))
        if self.error is not None:
            raise self.error
        await super().write_all(attempt, entries)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def back_up(
    entries: EntryWriter,
    task: TaskName,
    end: asyncio.Event,
    attempt: str = "1-1",
    *,
    is_awaited: bool = False,
) -> None:
    with entries.upload(attempt):
        await end.wait()
    await entries.write(attempt, task, b"entry", is_awaited=is_awaited)


async def test_entries_wait_for_the_uploads_that_are_under_way() -> None:
    store, clock = NotedStore(), HeldClock()
    entries = EntryWriter(store, clock)
    ends = [asyncio.Event() for _ in NAMES]
    uploads = [
        asyncio.create_task(back_up(entries, n, e)) for n, e in zip(NAMES, ends, strict=True)
    ]
    for end in ends:
        await settle()
        assert store.packs == []
        end.set()
    await clock.pass_all()
    await asyncio.gather(*uploads)
    assert store.packs == [("1-1", NAMES)]
    assert await store.read("1-1") == dict.fromkeys(NAMES, b"entry")


async def test_an_upload_that_takes_long_delays_no_entry_without_a_limit() -> None:
    store, clock = NotedStore(), HeldClock()
    entries = EntryWriter(store, clock)
    soon, late = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(back_up(entries, NAMES[0], soon))
    last = asyncio.create_task(back_up(entries, NAMES[1], late))
    await settle()
    soon.set()
    await clock.pass_all()
    await first
    assert store.packs == [("1-1", NAMES[:1])]
    late.set()
    await clock.pass_all()
    await last
    assert store.packs[1:] == [("1-1", NAMES[1:2])]


async def test_attempts_are_written_apart_and_a_failure_reaches_all() -> None:
    store = NotedStore()
    entries = EntryWriter(store, FakeClock())
    store.error = RetriableError("down")
    done = asyncio.Event()
    done.set()
    ended = await asyncio.gather(
        *(back_up(entries, n, done, a) for n in NAMES[:2] for a in ("1-1", "1-2")),
        return_exceptions=True,
    )
    assert [type(error) for error in ended] == [RetriableError] * 4
    assert sorted(store.packs) == [("1-1", NAMES[:2]), ("1-2", NAMES[:2])]
    store.error = None
    await back_up(entries, NAMES[0], done)
    assert await store.read("1-1") == {NAMES[0]: b"entry"}


async def test_an_entry_that_the_driver_waits_for_is_held_back_a_tenth_as_long() -> None:
    done = asyncio.Event()
    done.set()
    held_s: list[float] = []
    for is_awaited in (False, True):
        clock = FakeClock()
        await back_up(EntryWriter(NotedStore(), clock), NAMES[0], done, is_awaited=is_awaited)
        held_s.append(sum(clock.slept))
    assert held_s[1] < held_s[0] / 10


async def test_what_waits_at_the_end_is_given_up() -> None:
    store, clock = NotedStore(), HeldClock()
    entries = EntryWriter(store, clock)
    done = asyncio.Event()
    done.set()
    upload = asyncio.create_task(back_up(entries, NAMES[0], done))
    await settle()
    await entries.close()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert store.packs == []


async def test_the_driver_looks_less_often_the_longer_an_attempt_takes() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: "0_0123456789abcdef", 1: ""})
    await rig.committer.submitted(plan, {})
    for _ in range(400):
        await asyncio.sleep(0)
    assert rig.clock.monotonic_ns() > 60 * 10**9
    looks = [sum(rig.clock.slept[: n + 1]) for n in range(len(rig.clock.slept))]
    assert sum(1 for at in looks if at <= 60) < 25


async def test_the_driver_polls_more_often_while_a_caller_waits() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: "0_0123456789abcdef", 1: ""})
    await rig.committer.submitted(plan, {})
    waiting = asyncio.create_task(rig.committer.resolve(3600))
    while sum(rig.clock.slept) < 1:
        await asyncio.sleep(0)
    passed_s = [sum(rig.clock.slept[:n]) for n in range(len(rig.clock.slept))]
    pauses = zip(passed_s, rig.clock.slept, strict=True)
    assert all(pause_s <= max(0.03, passed_s / 2) for passed_s, pause_s in pauses)
    assert len(passed_s) < 12
    await rig.finish(plan, 0)
    await waiting
    assert plan.is_awaited
