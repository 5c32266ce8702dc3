"""What a newer release wrote is whole: another copy may serve, but never an older commit."""

from pathlib import Path

import pytest
from newer_frames import of_next_format
from restore_kit import FIRST, NEW, SECOND, A, B, Rig

from statekeep.errors import RestoreFailedError, UnknownFormatError


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.asyncio
async def test_what_a_newer_release_wrote_gives_way_to_the_copy_of_another_backend(
    rig: Rig,
) -> None:
    old, new = await rig.commit(b"old"), await rig.commit(b"new")
    rig.lose_disk()
    rig.upgrade(FIRST)
    outcome = await rig.restore(new, old)
    assert outcome.sources == {A: SECOND, B: SECOND}
    assert rig.content(outcome) == NEW
    assert not any(failure.is_marker_bad for failure in outcome.failures)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_second_lost", [False, True])
async def test_what_a_newer_release_wrote_is_an_error_and_never_an_older_commit(
    rig: Rig, *, is_second_lost: bool
) -> None:
    old, new = await rig.commit(b"old"), await rig.commit(b"new")
    rig.lose_disk()
    rig.upgrade(FIRST)
    if is_second_lost:
        rig.lose(SECOND, new, A)
        rig.lose(SECOND, new, B)
    else:
        rig.upgrade(SECOND)
    with pytest.raises(RestoreFailedError) as caught:
        await rig.restore(new, old)
    hints = caught.value.hints
    assert hints == ("use the version of Statekeep that wrote it, or a newer one",)
    assert isinstance(caught.value.__cause__, UnknownFormatError)
    assert not caught.value.is_for_good
    assert rig.directory.versions() == []


@pytest.mark.asyncio
async def test_beside_an_outage_both_remedies_are_reported(rig: Rig) -> None:
    new = await rig.commit(b"new")
    rig.lose_disk()
    rig.upgrade(FIRST)
    rig.silence(SECOND)
    with pytest.raises(RestoreFailedError) as caught:
        await rig.restore(new)
    hints = caught.value.hints
    assert ["newer one" in hint for hint in hints] == [True, False]
    assert ["once the backend answers" in hint for hint in hints] == [False, True]
    assert caught.value.__cause__ is None


@pytest.mark.asyncio
async def test_a_version_on_this_disk_of_a_newer_release_stays(rig: Rig) -> None:
    old, new = await rig.commit(b"old"), await rig.commit(b"new")
    path = rig.versions[1].directory / "SEAL-MANIFEST"
    newer = of_next_format(path.read_bytes())
    path.write_bytes(newer)
    with pytest.raises(UnknownFormatError, match=f"path={path}"):
        await rig.restore(new, old)
    assert path.read_bytes() == newer
    assert rig.directory.versions() == [old.version, new.version]
    rig.damage_local(rig.versions[0])
    assert (await rig.restore(old)).sources == {A: FIRST, B: FIRST}
