"""Clean-up by R8: any history, any sleeper that wakes at any time: no loss, and no leak at the end."""

import asyncio
import contextlib
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from encoded_kit import full_index
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.checkpoint.log_view import CommitEntry, LogView
from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.commit.retention import commits_in_reach
from statekeep.errors import BlobNotFoundError
from statekeep.testing.backend_harness import STORE, BackendHarness, LogSnapshot
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import Fault, FaultPlan, faulty_blob_factory

CONTENTS = [
    {"a": b"1", "b": b"1"},
    {"a": b"1", "b": b"2"},
    {"a": b"2", "c/d": b"1"},
    {},
    {"a": b"1"},
]

Step = tuple[Literal["commit", "void", "crash", "release", "rewind", "fall asleep", "wake"], int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["commit"] * 4,
                *["release"] * 3,
                *["fall asleep"] * 2,
                *["wake"] * 2,
                "void",
                "crash",
                "rewind",
            ]
        ),
        st.integers(0, 1 << 16),
    ),
    min_size=5,
    max_size=25,
)


class History:
    """Plays a history of commits, failures, releases and sleepers against one backend."""

    def __init__(self, directory: Path) -> None:
        self.root = uuid.uuid4().hex
        self.plan = FaultPlan()
        self.blobs = MemoryBlobStoreManager(self.root, SerialExecutor())
        self.task = BackendHarness(
            faulty_blob_factory(self.root, self.plan), SerialExecutor(), FakeClock(), directory
        )
        self.contents: dict[Marker, dict[str, bytes]] = {}
        self.sleepers: list[LogSnapshot] = []
        self.head = self.task.seal({})

    async def play(self, step: Step) -> None:
        kind, number = step
        content = CONTENTS[number % len(CONTENTS)]
        match kind:
            case "commit":
                self.head = self.task.seal(content, parent=self.head)
                commit = await self.task.commit(self.head)
                self.contents[commit.markers[STORE]] = content
            case "void" | "crash":
                await self._fail(content, number if kind == "crash" else None)
            case "release" if len(self.task.commits) > 1:
                # Any commit but the newest: pins make holes in what is retained.
                self.task.release(self.task.commits[number % (len(self.task.commits) - 1)])
            case "rewind" if self.task.commits:
                self.head = self.task.commits[number % len(self.task.commits)].context.version
            case "fall asleep":
                self.sleepers.append(await self.known())
            case "wake" if self.sleepers:
                await self.wake(self.sleepers[number % len(self.sleepers)])
            case _:
                pass

    async def known(self) -> LogSnapshot:
        """Return what a clean-up that begins now is given: no more than it needs."""
        name = self.task.task.task_name
        commits = {
            number: CommitRecord(
                epoch=1,
                nonce="",
                attempt_epoch=commit.attempt[0],
                attempt=commit.attempt[1],
                batch=number,
                checkpoint_id="1-1",
                identity=JobIdentity(job_uid="u", job_name="j", partitions=1),
                checkpoints={name: msgspec.Raw(encode_checkpoint_v2(commit.checkpoint))},
            )
            for number, commit in enumerate(self.task.commits)
        }
        closed = tuple(self.task.closed_attempts)
        if not closed:
            return LogSnapshot((), ())
        view = LogView(commits={p: CommitEntry.of(commit) for p, commit in commits.items()})

        async def read(positions: Iterable[int]) -> Mapping[int, CommitRecord]:
            return {position: commits[position] for position in positions}

        found = (await commits_in_reach(view, closed, read)).checkpoints(name)
        markers = [backend for each in found for backend in each.state_markers.values()]
        return LogSnapshot(markers, closed)

    async def wake(self, known: LogSnapshot) -> None:
        """Clean up by old knowledge.

        A sleeper whose retained indexes were released and deleted meanwhile deletes nothing and
        says so.
        """
        before = await self.blobs.list("")
        try:
            await self.task.clean_up(known)
        except BlobNotFoundError:
            assert await self.blobs.list("") == before

    async def _fail(self, content: dict[str, bytes], crash_at: int | None) -> None:
        self.head = self.task.seal(content, parent=self.head)
        context = self.task.open_attempt(self.head)
        if crash_at is not None:
            self.plan.add(Fault("*", skip=crash_at % 6, make_error=SystemError))
        with contextlib.suppress(SystemError):
            await self.task.upload(context)
        self.plan.clear()
        self.task.abort(context)

    async def check_all_commits_restore(self) -> None:
        for commit in self.task.commits:
            restored = await self.task.restore(commit.checkpoint)
            assert restored.content[STORE] == self.contents[commit.markers[STORE]]

    async def check_ledger(self) -> None:
        markers = [commit.markers[STORE] for commit in self.task.commits]
        reached: set[str] = set(markers)
        for marker in markers:
            reached |= full_index(await self.blobs.get(marker), where="test").blob_ids()
        assert set(await self.blobs.list("")) == reached


async def run_history(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        history = History(Path(directory))
        await history.task.start()
        for step in steps:
            await history.play(step)
        for known in history.sleepers:
            await history.wake(known)
        await history.check_all_commits_restore()
        await history.task.clean_up(await history.known())
        await history.check_ledger()
        await history.task.close()
        forget_root(history.root)


@settings(max_examples=40, deadline=None)
@given(STEPS)
@example([("commit", 0), ("commit", 1), ("release", 0)])
@example([("commit", 0), ("commit", 1), ("release", 0), ("fall asleep", 0), ("commit", 0)])
def test_no_sleeper_deletes_what_a_retained_commit_reaches_and_nothing_leaks(
    steps: list[Step],
) -> None:
    asyncio.run(run_history(steps))


@pytest.mark.asyncio
async def test_a_clean_up_stopped_between_list_and_delete_harms_no_later_commit(
    tmp_path: Path,
) -> None:
    history = History(tmp_path)
    await history.task.start()
    for number in (0, 1, 0):
        await history.play(("commit", number))
    await history.play(("release", 0))
    gate = asyncio.Event()
    slow = asyncio.create_task(delayed_deletes(history, gate))
    for _ in range(200):
        await asyncio.sleep(0)
    for number in (1, 0, 4, 1):
        await history.play(("commit", number))
        await history.play(("release", 0))
    gate.set()
    await slow
    await history.check_all_commits_restore()
    await history.task.clean_up()
    await history.check_ledger()
    forget_root(history.root)


async def delayed_deletes(history: History, gate: asyncio.Event) -> None:
    """Clean up by what is known now, but sleep before the first delete."""
    other = BackendHarness(
        faulty_blob_factory(history.root, FaultPlan()), SerialExecutor(), FakeClock(), Path()
    )
    await other.start()
    known = history.task.log_snapshot()
    delete = MemoryBlobStoreManager.delete

    async def late_delete(self: MemoryBlobStoreManager, blob_id: str) -> None:
        await gate.wait()
        await delete(self, blob_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryBlobStoreManager, "delete", late_delete)
        await other.clean_up(known)
    await other.close()


@pytest.mark.asyncio
async def test_blobs_that_are_not_of_our_form_are_left_alone(tmp_path: Path) -> None:
    history = History(tmp_path)
    await history.task.start()
    await history.play(("void", 0))
    strange = "kit-job/state-77aa/blob/kit-operator/Partition_0/README"
    await history.blobs.put(strange, b"", BlobMetadata(None, None, "x"))
    await history.task.clean_up()
    assert await history.blobs.list("") == [strange]
    forget_root(history.root)


@pytest.mark.asyncio
async def test_what_a_late_writer_of_a_closed_attempt_left_is_found_next_time(
    tmp_path: Path,
) -> None:
    history = History(tmp_path)
    await history.task.start()
    await history.play(("commit", 0))
    late = history.task.open_attempt(history.task.seal(CONTENTS[1]))
    history.task.abort(late)
    await history.task.clean_up()
    await history.task.upload(late)
    await history.task.clean_up()
    await history.check_ledger()
    forget_root(history.root)


@pytest.mark.asyncio
async def test_what_an_attempt_left_goes_though_a_trimmed_log_no_longer_names_it(
    tmp_path: Path,
) -> None:
    history = History(tmp_path)
    await history.task.start()
    first, second, _ = [
        await history.task.commit(history.task.seal(CONTENTS[number])) for number in (0, 1, 2)
    ]
    history.task.release(first)
    history.task.release(second)
    # As a new process does that reads the log from its floor: the second attempt is all it knows.
    retained = [commit.markers for commit in history.task.commits]
    await history.task.manager.clean_up(retained, [second.attempt])
    left = await history.blobs.list("")
    assert not [blob for blob in left if f"/{first.attempt[0]}-{first.attempt[1]}/" in blob]
    await history.check_ledger()
    forget_root(history.root)


@pytest.mark.asyncio
async def test_a_store_that_the_job_no_longer_has_goes_with_the_last_commit_that_had_it(
    tmp_path: Path,
) -> None:
    history = History(tmp_path)
    task, dropped = history.task, StoreName("dropped")
    task.stores = (STORE, dropped)
    await task.start()
    for number in (0, 1):
        await task.commit(task.seal({STORE: CONTENTS[number], dropped: CONTENTS[number]}))
    await task.close()
    task.stores = (STORE,)
    await task.start()
    for number in (2, 4):
        await task.commit(task.seal({STORE: CONTENTS[number]}))
        task.release(task.commits[0])
        await task.clean_up()
    assert not [blob for blob in await history.blobs.list("") if "/dropped/" in blob]
    await history.check_ledger()
    forget_root(history.root)
