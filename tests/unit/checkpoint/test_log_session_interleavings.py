"""Several drivers of one job at once, in random interleavings, over a store that loses answers."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import (
    DawdlingBlobs,
    abort_record,
    attempt_record,
    base_record,
    batch_record,
    commit_record,
    log_on,
    new_blobs,
    view_of,
)

from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import EpochRecord, Record, ReleaseRecord, decode_record
from statekeep.errors import CommitFailedError, RetriableError, TaskFencedError


@dataclass
class Driver:
    """One driver's life: it takes over, writes, and ends when it is fenced."""

    blobs: BlobStoreManager
    rng: random.Random
    acknowledged: dict[int, Record] = field(default_factory=dict[int, Record])
    fenced: bool = False

    async def live(self, steps: int) -> None:
        writer = LogSession(log_on(self.blobs))
        try:
            await self.insist(writer.open)
            await self.insist(lambda: writer.take_over("driver"))
            await self.write(writer, base_record(0))
            for step in range(1, steps + 1):
                await self.one_step(writer, step)
        except TaskFencedError:
            self.fenced = True

    async def one_step(self, writer: LogSession, step: int) -> None:
        await self.write(writer, batch_record(step))
        await self.write(writer, attempt_record(step, batch=step))
        if self.rng.random() < 0.3:
            await self.write(writer, abort_record(step, attempt_epoch=writer.epoch))
        try:
            await self.write(writer, commit_record(step, step, attempt_epoch=writer.epoch))
        except CommitFailedError:
            return
        old = list(writer.view.commits)[:-2]
        if old and self.rng.random() < 0.5:
            await self.write(writer, ReleaseRecord(positions=old))
            await self.insist(lambda: writer.trim(writer.view.lowest_needed))

    async def write(self, writer: LogSession, record: Record) -> None:
        position = await self.insist(lambda: writer.append(record))
        assert isinstance(position, int)
        self.acknowledged[position] = record

    async def insist(self, call: object) -> object:
        assert callable(call)
        while True:
            try:
                return await call()
            except RetriableError:
                continue


async def run_drivers(seed: int, driver_count: int, steps: int) -> None:
    rng = random.Random(seed)
    blobs = new_blobs()
    drivers = [
        Driver(DawdlingBlobs(blobs, rng, loss=0.2), random.Random(rng.random()))
        for _ in range(driver_count)
    ]
    await asyncio.gather(*(driver.live(steps) for driver in drivers))

    log = log_on(blobs)
    floor = await log.read_floor()
    records = {p: decode_record(d, where=f"position={p}") for p, d in await log.read(floor)}
    assert list(records) == list(range(floor, floor + len(records)))
    epochs = [record.epoch for record in records.values()]
    assert epochs == sorted(epochs)
    first_of_epoch = [p for p in records if p > floor and records[p].epoch != records[p - 1].epoch]
    assert all(isinstance(records[position], EpochRecord) for position in first_of_epoch)
    nonces = [record.nonce for record in records.values()]
    assert len(set(nonces)) == len(nonces)
    told = {p: type(r) for driver in drivers for p, r in driver.acknowledged.items()}
    assert sum(len(driver.acknowledged) for driver in drivers) == len(told)
    kept = {p: kind for p, kind in told.items() if p >= floor}
    assert {p: type(r) for p, r in records.items() if not isinstance(r, EpochRecord)} == kept
    assert sum(not driver.fenced for driver in drivers) >= 1
    view = await view_of(blobs)
    attempts = [commit.attempt for commit in view.commits.values()]
    assert len(set(attempts)) == len(attempts)
    assert not view.aborted_attempts & set(attempts)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(min_value=0, max_value=2**32),
    driver_count=st.integers(min_value=1, max_value=5),
    steps=st.integers(min_value=1, max_value=5),
)
def test_log_stays_whole_under_racing_drivers(seed: int, driver_count: int, steps: int) -> None:
    asyncio.run(run_drivers(seed, driver_count, steps))
