"""Random schedules of a job and its clones: no clean-up deletes what another needs, and nothing stays behind."""

import contextlib
import random
from pathlib import Path

import pytest
from cloning_kit import TASKS, Driver, Place, killed_at

from statekeep.errors import ConfigError, RetriableError

STEPS = 14
REFUSED = (ConfigError, RetriableError)


class Ledger:
    """One schedule; what may be killed is made up for sooner or later, or never."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.place = Place(directory)
        self.jobs = ["origin"]
        """Those that are there, oldest first."""
        self.half_made: set[str] = set()
        self.names = iter(f"copy-{number}" for number in range(STEPS))

    def _nth(self) -> int:
        """Return at which fault point the next call is killed: at none, most of the time."""
        return self.rng.choice([1, 2, 3, 5, 8]) if self.rng.random() < 0.4 else 1_000_000

    async def commit(self) -> None:
        name = self.rng.choice(self.jobs)
        numbers = self.rng.sample(range(len(TASKS)), self.rng.randint(0, len(TASKS)))
        changes = {number: {b"k": self.rng.randbytes(4)} for number in numbers}
        with killed_at(nth=self._nth()):
            await Driver(self.place, name).run(changes, cleans_up=self.rng.random() < 0.7)

    async def clone(self) -> None:
        name = next(self.names)
        with killed_at(nth=self._nth()) as killed:
            await self.place.clone(self.rng.choice(self.jobs), name)
        if killed:
            self.half_made.add(name)
        else:
            self.jobs.append(name)

    async def end(self) -> None:
        name = self.rng.choice([*self.jobs[1:], *self.half_made] or ["origin"])
        is_promoted = self.rng.random() < 0.5 and name in self.jobs
        with killed_at(nth=self._nth()) as killed, contextlib.suppress(*REFUSED):
            if is_promoted:
                await self.place.promote(name)
            else:
                await self.place.drop(name)
                if not killed:
                    self._forget(name)
        if killed and not is_promoted:
            await self._drop(name)
        await self._note(name)

    async def _drop(self, name: str) -> None:
        with contextlib.suppress(*REFUSED):
            await self.place.drop(name)
        if not await self.place.is_there(name):
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.half_made.discard(name)
        self.jobs = [job for job in self.jobs if job != name]

    async def _note(self, name: str) -> None:
        """Remember the content of commits that a promotion has made, killed or not."""
        if name in self.jobs:
            await self.place.note(name)

    async def step(self) -> None:
        kind = self.rng.choices([self.commit, self.clone, self.end], [6, 3, 2])[0]
        await kind()
        for name in self.jobs:
            await self.place.note(name)
        blobs = await self.place.blobs()
        for name in self.jobs:
            assert await self.place.reached(name) <= blobs

    async def finish(self) -> None:
        """End every clone, youngest first, and look at what is left."""
        for name in sorted(self.half_made):
            await self._drop(name)
        await self.place.check(*self.jobs)
        for name in self.jobs[:0:-1]:
            if self.rng.random() < 0.5:
                with contextlib.suppress(ConfigError):  # it shares nothing any more
                    await self.place.promote(name)
                await self.place.note(name)
            else:
                await self._drop(name)
        for name in self.jobs:
            for number in range(3):
                changes = {task: {b"last": b"%d" % number} for task in range(len(TASKS))}
                await Driver(self.place, name).run(changes, cleans_up=True)
        await self.place.check(*self.jobs)
        for name in self.jobs:
            assert (await self.place.view(name)).pins == {}
        reached = [await self.place.reached(name) for name in self.jobs]
        assert await self.place.blobs() == set().union(*reached)


@pytest.mark.asyncio
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(12))
async def test_no_job_loses_what_it_retains_and_nothing_stays_behind(
    tmp_path: Path, seed: int
) -> None:
    ledger = Ledger(tmp_path, seed)
    await ledger.place.begin("origin")
    for _ in range(STEPS):
        await ledger.step()
    await ledger.finish()
