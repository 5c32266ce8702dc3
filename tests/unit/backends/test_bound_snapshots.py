"""An encrypted snapshot is good for one job, task, store and version, and at one place."""

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from encoded_kit import KEY_LINE

from statekeep.backends.blob.codec import Codec, EncodingSettings
from statekeep.backends.blob.encoded_stream import Encoding, StreamEncoder
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.names import index_digest, index_place
from statekeep.backends.encryption_keys import EncryptionKey
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import CheckpointV2, Marker, StoreName
from statekeep.errors import CheckpointCorruptError, KeyUnavailableError
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import FaultPlan, faulty_blob_factory

ENCRYPTED = {"encryption": "aes-256-gcm", "pack.max.file.bytes": "0"}
FIRST, SECOND = {"CURRENT": b"1" * 40, "a.sst": b"a" * 40}, {"CURRENT": b"2" * 40}
OTHER = StoreName("other")
OTHER_KEY = EncryptionKey("2026-12", b"n" * 32)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    forget_root(str(tmp_path))


@pytest.fixture
def blobs(root: str) -> dict[str, bytes]:
    return MemoryBlobStoreManager(root, SerialExecutor())._blobs


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    (tmp_path / "keys").write_text(KEY_LINE)
    return tmp_path / "keys"


def factory_of(root: str, keys: Path, settings: Mapping[str, str]) -> BlobBackendFactory:
    return faulty_blob_factory(root, FaultPlan(), {"encryption.keys": f"file:{keys}", **settings})


@pytest.fixture
def factory(root: str, keys: Path) -> BlobBackendFactory:
    return factory_of(root, keys, ENCRYPTED)


def harness(
    factory: BlobBackendFactory, tmp_path: Path, name: str, **changes: str
) -> BackendHarness:
    stores = (STORE, OTHER) if name == "stores" else (STORE,)
    return BackendHarness(
        factory, SerialExecutor(), FakeClock(), tmp_path / name, stores=stores, **changes
    )


@pytest_asyncio.fixture
async def task(factory: BlobBackendFactory, tmp_path: Path) -> AsyncIterator[BackendHarness]:
    made = harness(factory, tmp_path, "task")
    await made.start()
    yield made
    await made.close()


def naming(checkpoint: CheckpointV2, marker: Marker, store: StoreName = STORE) -> CheckpointV2:
    """Return a checkpoint that names another snapshot, as if its authenticity had not been looked at."""
    [(backend, markers)] = checkpoint.state_markers.items()
    return replace(checkpoint, state_markers={backend: {**markers, store: marker}})


def put_index(blobs: dict[str, bytes], like: Marker, data: bytes) -> Marker:
    """Put an index beside another one, under a name that fits its digest."""
    name = like.replace(index_digest(like), hashlib.sha256(data).hexdigest())
    blobs[name] = data
    return Marker(name)


@pytest.mark.asyncio
async def test_a_plain_snapshot_in_the_place_of_an_encrypted_one_is_refused(
    task: BackendHarness, root: str, keys: Path, tmp_path: Path
) -> None:
    commit = await task.commit(task.seal(FIRST))
    plain = harness(factory_of(root, keys, {}), tmp_path, "plain")
    await plain.start()
    forged = await plain.commit(plain.seal(SECOND))
    with pytest.raises(CheckpointCorruptError, match="its index is not encrypted"):
        await task.restore(naming(commit.checkpoint, forged.markers[STORE]))
    await plain.close()


@pytest.mark.asyncio
async def test_a_compressed_index_is_no_encrypted_one(
    task: BackendHarness, blobs: dict[str, bytes], root: str, keys: Path, tmp_path: Path
) -> None:
    commit = await task.commit(task.seal(FIRST))
    plain = harness(factory_of(root, keys, {"compression": "zstd"}), tmp_path, "plain")
    await plain.start()
    forged = await plain.commit(plain.seal(SECOND))
    assert blobs[forged.markers[STORE]].startswith(b"SKSTREAM")
    with pytest.raises(CheckpointCorruptError, match="its index is not encrypted"):
        await task.restore(naming(commit.checkpoint, forged.markers[STORE]))
    await plain.close()


@pytest.mark.asyncio
async def test_the_index_of_an_older_commit_is_refused_for_a_newer_version(
    task: BackendHarness, blobs: dict[str, bytes]
) -> None:
    older = await task.commit(task.seal(FIRST))
    newer = await task.commit(task.seal(SECOND))
    version = newer.context.version.id
    assert (await task.restore(newer.checkpoint, version=version)).content == {STORE: SECOND}
    with pytest.raises(CheckpointCorruptError, match="of another version than the commit"):
        await task.restore(naming(newer.checkpoint, older.markers[STORE]), version=version)
    copied = put_index(blobs, newer.markers[STORE], blobs[older.markers[STORE]])
    with pytest.raises(CheckpointCorruptError, match="not what was encrypted here"):
        await task.restore(naming(newer.checkpoint, copied), version=version)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "changes",
    [{"task_name": "Partition 1"}, {"job_uid": "88bb"}],
    ids=["another task", "another job's log"],
)
async def test_the_snapshot_of_another_is_refused_where_it_is_and_where_it_is_copied_to(
    task: BackendHarness,
    factory: BlobBackendFactory,
    blobs: dict[str, bytes],
    tmp_path: Path,
    changes: dict[str, str],
) -> None:
    commit = await task.commit(task.seal(FIRST))
    other = harness(factory, tmp_path, "another", **changes)
    await other.start()
    marker = (await other.commit(other.seal(SECOND))).markers[STORE]
    with pytest.raises(CheckpointCorruptError, match="snapshot index is of another"):
        await task.restore(naming(commit.checkpoint, marker))
    copied = put_index(blobs, commit.markers[STORE], blobs[marker])
    with pytest.raises(CheckpointCorruptError, match="not what was encrypted here"):
        await task.restore(naming(commit.checkpoint, copied))
    await other.close()


@pytest.mark.asyncio
async def test_the_snapshot_of_another_store_is_refused(
    factory: BlobBackendFactory, blobs: dict[str, bytes], tmp_path: Path
) -> None:
    task = harness(factory, tmp_path, "stores")
    await task.start()
    commit = await task.commit(task.seal({STORE: FIRST, OTHER: SECOND}))
    theirs = commit.markers[OTHER]
    with pytest.raises(CheckpointCorruptError, match="snapshot index is of another"):
        await task.restore(naming(commit.checkpoint, theirs))
    copied = put_index(blobs, commit.markers[STORE], blobs[theirs])
    with pytest.raises(CheckpointCorruptError, match="not what was encrypted here"):
        await task.restore(naming(commit.checkpoint, copied))
    await task.close()


@pytest.mark.asyncio
async def test_parts_of_files_are_not_exchanged_changed_or_cut_off(
    task: BackendHarness, blobs: dict[str, bytes]
) -> None:
    commit = await task.commit(task.seal(FIRST))
    whole = dict(blobs)
    one, two = sorted(name for name in blobs if "snapshot-index" not in name)[:2]
    changes: list[dict[str, bytes]] = [
        {one: whole[two], two: whole[one]},
        {one: whole[one][:-20]},
        {one: b""},
        {commit.markers[STORE]: whole[commit.markers[STORE]][:-1]},
    ]
    for change in changes:
        blobs.update(change)
        with pytest.raises(CheckpointCorruptError):
            await task.restore(commit.checkpoint)
        blobs.update(whole)
    assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST}


@pytest.mark.asyncio
async def test_an_index_that_is_encrypted_again_needs_the_key(
    task: BackendHarness, blobs: dict[str, bytes]
) -> None:
    commit = await task.commit(task.seal(FIRST))
    like = commit.markers[STORE]
    encoder = StreamEncoder(Encoding("none", OTHER_KEY), index_place(like), b"s" * 32)
    forged = put_index(blobs, like, encoder.encode(b"{}", is_last=True))
    with pytest.raises(KeyUnavailableError, match="key_id=2026-12"):
        await task.restore(naming(commit.checkpoint, forged))


@pytest.mark.asyncio
async def test_plain_state_is_read_until_the_day_of_the_switch_is_over(
    root: str, keys: Path, tmp_path: Path
) -> None:
    plain = harness(factory_of(root, keys, {}), tmp_path, "plain")
    await plain.start()
    commit = await plain.commit(plain.seal(FIRST))
    clock = FakeClock()
    switch = {"encryption.plain.until": "2023-11-14"}  # the day on which that clock begins
    late = BackendHarness(
        factory_of(root, keys, ENCRYPTED | switch), SerialExecutor(), clock, tmp_path / "late"
    )
    assert (await late.restore(commit.checkpoint)).content == {STORE: FIRST}
    clock.advance(86_400)
    with pytest.raises(CheckpointCorruptError, match="is not encrypted") as refused:
        await late.restore(commit.checkpoint)
    assert "encryption.plain.until" in refused.value.hints[0]
    await plain.close()


@pytest.mark.asyncio
async def test_what_a_rotation_has_left_behind_is_recognised_by_its_marker(
    task: BackendHarness, factory: BlobBackendFactory, root: str, keys: Path, tmp_path: Path
) -> None:
    plain = harness(factory_of(root, keys, {}), tmp_path, "plain")
    await plain.start()
    unencrypted = (await plain.commit(plain.seal(FIRST))).markers[STORE]
    marker = (await task.commit(task.seal(FIRST))).markers[STORE]
    executor = SerialExecutor()
    assert set(await factory.outdated({STORE: [marker, unencrypted]}, executor)) == {unencrypted}
    keys.write_text(f"2026-12 {'A' * 43}=\n{KEY_LINE}")
    assert set(await factory.outdated({STORE: [marker]}, executor)) == {marker}
    off = factory_of(root, keys, {"encryption": "none"})
    assert not await off.outdated({STORE: [marker]}, executor)
    await plain.close()


def test_a_codec_without_a_day_accepts_nothing_older() -> None:
    codec = Codec(EncodingSettings(is_encrypted=True), None, bytes)
    for version in (0, 1):
        with pytest.raises(CheckpointCorruptError):
            codec.check_index_form(STORE, version, "test")
    codec.check_index_form(STORE, 2, "test")
