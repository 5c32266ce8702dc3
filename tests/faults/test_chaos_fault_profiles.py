"""Bad days of the places of a job: which calls fail, and for how long."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

from chaos.fault_profile import FaultProfile, FaultyManager
from chaos.plain.fault_profile import LifelongProfile
from chaos.spark import arming
from chaos.spark.fault_profile import make_manager
from chaos.spark.lost_files import LostFiles
from chaos.spark.places import Places
from chaos.spark.plan import Damage
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.errors import RetriableError
from statekeep.testing.executor import SerialExecutor

METADATA = BlobMetadata(task=None, store_name=None, payload_name="test")


@pytest.fixture
def inner(tmp_path: Path) -> BlobStoreManager:
    return MemoryBlobStoreManager(str(tmp_path), SerialExecutor())


class OneProfile(FaultyManager):
    def __init__(self, inner: BlobStoreManager, profile: FaultProfile) -> None:
        super().__init__(inner, random.Random(7), slowest_s=0.0)
        self._profile = profile

    @override
    def profile_now(self) -> FaultProfile:
        return self._profile


async def outcomes(manager: BlobStoreManager, calls: int) -> list[bool]:
    """Return whether each of so many puts was answered well."""
    found: list[bool] = []
    for number in range(calls):
        try:
            await manager.put(f"blob-{number}", b"1", METADATA)
        except RetriableError:
            found.append(False)
        else:
            found.append(True)
    return found


async def count_of(manager: BlobStoreManager, calls: int) -> int:
    return sum([bool(await manager.list(f"blob-{number}")) for number in range(calls)])


@pytest.mark.asyncio
@pytest.mark.parametrize("profile", [FaultProfile.FAIR, FaultProfile.SLOW])
async def test_slow_profile_answers(inner: BlobStoreManager, profile: FaultProfile) -> None:
    assert await outcomes(OneProfile(inner, profile), 20) == [True] * 20


@pytest.mark.asyncio
async def test_flapping_profile_answers_now_and_then(inner: BlobStoreManager) -> None:
    answered = await outcomes(OneProfile(inner, FaultProfile.FLAPPING), 40)
    assert answered.count(True) >= 10
    assert answered.count(False) >= 10


@pytest.mark.asyncio
async def test_nothing_takes_effect_in_an_outage(inner: BlobStoreManager) -> None:
    assert await outcomes(OneProfile(inner, FaultProfile.OUTAGE), 20) == [False] * 20
    assert await count_of(inner, 20) == 0


@pytest.mark.asyncio
async def test_a_lost_answer_is_one_of_a_call_that_took_effect(inner: BlobStoreManager) -> None:
    assert False in await outcomes(OneProfile(inner, FaultProfile.LOSSY), 60)
    assert await count_of(inner, 60) == 60


@pytest.mark.asyncio
async def test_an_outage_of_the_plain_level_passes(inner: BlobStoreManager) -> None:
    answered = await outcomes(LifelongProfile(inner, FaultProfile.OUTAGE, "seed"), 200)
    begins = answered.index(False)
    ends = answered.index(True, begins)
    assert 10 <= ends - begins <= 80
    assert all(answered[ends:])


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Writes down a fault profile of the place below ``tmp_path``, until so many seconds from now."""
    plan = tmp_path / "plan.json"
    arming.write_plan(
        plan,
        [],
        tmp_path / "claims",
        tmp_path / "reached",
        profile=tmp_path / "fault-profiles.json",
    )
    monkeypatch.setenv(arming.PLAN_VARIABLE, str(plan))

    def write(profile: str, seconds: float) -> None:
        uri = f"file://{tmp_path / 'backup'}"
        arming.write_profiles(
            tmp_path / "fault-profiles.json", {uri: profile}, time.monotonic() + seconds
        )

    return write


@pytest.mark.asyncio
async def test_a_planned_bad_day_meets_calls_while_it_lasts(
    tmp_path: Path, planned: Callable[[str, float], None]
) -> None:
    struck, other = (
        make_manager({"uri": f"file://{tmp_path / name}"}, SerialExecutor())
        for name in ("backup", "other")
    )
    await struck.init()
    await other.init()
    assert await outcomes(struck, 2) == [True, True]
    planned("outage", 60)
    assert await outcomes(struck, 2) == [False, False]
    assert await outcomes(other, 2) == [True, True]
    planned("outage", -1)
    assert await outcomes(struck, 2) == [True, True]


@pytest.mark.parametrize("is_truncated", [False, True])
def test_a_damaged_backup_has_other_bytes_and_local_state_is_gone(
    tmp_path: Path,
    is_truncated: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    places, names = Places(tmp_path), [f"state/blob-{number}" for number in range(5)]
    backup = places.backup("blob-1")
    (backup / "state").mkdir(parents=True)
    for name in names:
        (backup / name).write_bytes(b"0123456789")
    (places.local / "tally" / "main" / "Partition_0").mkdir(parents=True)
    damage = Damage(place=0, blobs=3, is_truncated=is_truncated)
    LostFiles(places, 1, None).damage(damage, backup, names)
    spoilt = [name for name in names if (backup / name).read_bytes() != b"0123456789"]
    assert len(spoilt) == 3
    sizes = {len((backup / name).read_bytes()) for name in spoilt}
    assert (max(sizes) < 10) is is_truncated
    assert list(places.local.glob("*/main/*")) == []
