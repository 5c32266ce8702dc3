"""Any history of commits, failures, rewinds and clean-ups: every retained commit restores exactly."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from increments_kit import Changes, IncrementJob, folded

from statekeep.backends.storage.memory import forget_root
from statekeep.checkpoint.checkpoints import Marker
from statekeep.stores.version import SealedVersion
from statekeep.testing.faults import Fault

NO_CHANGES: dict[bytes, bytes | None] = {}
KEYS = st.sampled_from([b"%02d" % number for number in range(40)])
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=200), max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), CHANGES),
        st.tuples(st.just("commit"), CHANGES),
        st.tuples(st.just("seal"), CHANGES),
        st.tuples(st.just("fail"), CHANGES),
        st.tuples(st.sampled_from(["rewind", "release", "clean up", "lose"]), st.just(NO_CHANGES)),
    ),
    min_size=4,
    max_size=25,
)
Kind = Literal["commit", "seal", "fail", "rewind", "release", "clean up", "lose"]


class History:
    """Plays steps, and knows what every version holds."""

    def __init__(self, root: Path) -> None:
        self.job = IncrementJob(root, settings={"snapshot.max.deltas": "4"})
        self.head: SealedVersion | None = None
        self.content: Mapping[bytes, bytes] = {}
        self.committed: dict[Marker, Mapping[bytes, bytes]] = {}
        self.is_captured = True

    async def play(self, kind: Kind, changes: Changes) -> None:
        job = self.job
        match kind:
            case "seal":
                self.seal(changes)
            case "commit":
                made = await job.commit(self.seal(changes))
                self.committed[made.marker] = self.content
            case "fail":
                await self.fail(changes)
            case "rewind" if job.commits:
                oldest = job.commits[0]
                self.head, self.content = oldest.version, self.committed[oldest.marker]
            case "release" if len(job.commits) > 1:
                job.release(0)
            case "clean up":
                await job.clean_up()
            case "lose":
                self.is_captured = False  # of the next version
            case _:
                pass

    def seal(self, changes: Changes) -> SealedVersion:
        self.head = self.job.seal(self.head, changes, is_captured=self.is_captured)
        self.content = folded(self.content, changes)
        self.is_captured = True
        return self.head

    async def fail(self, changes: Changes) -> None:
        self.job.plan.add(Fault("put", "*snapshot-index*", make_error=SystemError))
        attempt = self.job.open_attempt(self.seal(changes))
        with pytest.raises(SystemError):
            await self.job.manager.upload(
                attempt.checkpoint_id, self.job.manager.snapshot(attempt.checkpoint_id)
            )
        self.job.plan.clear()
        self.job.closed.append((1, attempt.attempt))

    async def check(self) -> None:
        for commit in self.job.commits:
            content, _ = await self.job.restore(commit.checkpoint)
            assert content == self.committed[commit.marker]
            versions = [other.version for other in self.job.commits]
            content, _ = await self.job.restore(commit.checkpoint, *versions)
            assert content == self.committed[commit.marker]
        await self.job.clean_up()
        await self.job.check_ledger()


async def run_history(steps: list[tuple[Kind, Changes]]) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        patch("statekeep.backends.blob.settings._FREE_DELTA_BYTES", 2_000),
    ):
        history = History(Path(name))
        await history.job.manager.init()
        for kind, changes in steps:
            await history.play(kind, changes)
        await history.check()
        forget_root(name)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_every_retained_commit_restores_what_its_version_held_and_nothing_leaks(
    steps: list[tuple[Kind, Changes]],
) -> None:
    asyncio.run(run_history(steps))
