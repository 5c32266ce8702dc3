"""Commits between two snapshots: changes go up, chains of them are restored, damage is found."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from increments_kit import BLOB, Changes, IncrementJob, Made, folded

from statekeep.backends.blob import backup
from statekeep.backends.blob import image as image_module
from statekeep.backends.blob.codec import Codec, EncodingSettings
from statekeep.backends.blob.encoded_stream import Encoding
from statekeep.backends.blob.index import DeltaBlob, SnapshotIndex, decode_index, encode_index
from statekeep.backends.blob.index_blobs import IndexBlobs
from statekeep.backends.blob.restored_file import DeltaLoad, FetchedDelta
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage.memory import forget_root
from statekeep.checkpoint.checkpoints import CheckpointV2
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import (
    BlobNotFoundError,
    CheckpointCorruptError,
    StateBackupError,
    VersionDamagedError,
)
from statekeep.stores.delta import DeltaReader
from statekeep.stores.memory import MemoryStore
from statekeep.stores.version import SealedVersion
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import STORE

LARGE = {b"%04d" % number: b"v" * 100 for number in range(200)}
SECOND: Changes = {b"0001": b"second", b"0002": None}
THIRD: Changes = {b"0001": b"third", b"0002": b"again", b"0003": None}
METADATA = BlobMetadata(None, None, "x")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[IncrementJob]:
    yield from started(tmp_path, "memory")


@pytest.fixture(params=["memory", "rocksdb"])
def any_job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[IncrementJob]:
    yield from started(tmp_path, request.param)


def started(root: Path, kind: StoreFactoryName) -> Iterator[IncrementJob]:
    yield IncrementJob(root, kind)
    forget_root(str(root))


async def chain(job: IncrementJob) -> list[Made]:
    """Commit an image and two commits of changes."""
    await job.manager.init()
    first = await job.commit(job.seal(None, LARGE))
    second = await job.commit(job.seal(first.version, SECOND))
    return [first, second, await job.commit(job.seal(second.version, THIRD))]


def blob_names(job: IncrementJob) -> list[str]:
    """Return the file names of what was put, without their uid and number."""
    return [name.rpartition("/")[2].split("-", 2)[2] for name in job.plan.called("put")]


async def with_index(job: IncrementJob, index: SnapshotIndex) -> CheckpointV2:
    """Store a hand-made index and return a checkpoint that names it."""
    codec = Codec(EncodingSettings(), None, bytes)
    indexes = IndexBlobs(job.blobs, codec, SerialExecutor())
    marker = await indexes.put("job/x/1-1/", "aa", index, METADATA, Encoding())
    return CheckpointV2(job.commits[-1].checkpoint.checkpoint_id, {}, {BLOB: {STORE: marker}})


@pytest.mark.asyncio
async def test_a_snapshot_decides_what_goes_up_without_a_request(any_job: IncrementJob) -> None:
    job = any_job
    await job.manager.init()
    version = job.seal(None, LARGE)
    sizes = {entry.path: entry.size for entry in version.store_files(STORE)}
    assert planned(job, version) == (len(sizes), sum(sizes.values()))
    first = await job.commit(version)
    changed = job.seal(first.version, SECOND)
    [delta] = changed.changes_since(STORE, first.version.id) or []
    assert planned(job, changed) == (1, delta.stat().st_size)
    again = job.new_manager()  # remembers no index
    assert again.snapshot(job.open_attempt(changed).checkpoint_id).bytes == delta.stat().st_size


@pytest.mark.asyncio
async def test_a_snapshot_counts_the_new_files_where_an_image_is_due(tmp_path: Path) -> None:
    job = IncrementJob(tmp_path, "memory", {"snapshot.max.delta.ratio": "0"})
    await job.manager.init()
    first = await job.commit(job.seal(None, LARGE))
    version = job.seal(first.version, SECOND)
    sizes = [entry.size for entry in version.store_files(STORE)]
    assert planned(job, version) == (len(sizes), sum(sizes))
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_a_store_of_more_files_than_a_restore_reads_is_refused_before_anything_goes_up(
    job: IncrementJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    await job.manager.init()
    version = job.seal(None, LARGE)
    monkeypatch.setattr(backup, "MAX_IMAGE_FILES", len(version.store_files(STORE)) - 1)
    with pytest.raises(StateBackupError, match="more files than a restore would read"):
        await job.commit(version)
    assert not job.plan.called("put")


def planned(job: IncrementJob, version: SealedVersion) -> tuple[int, int]:
    """Return the files and bytes of a snapshot, for which no request is made."""
    job.plan.calls.clear()
    snapshot = job.manager.snapshot(job.open_attempt(version).checkpoint_id)
    assert not job.plan.calls
    return snapshot.stores[STORE].files, snapshot.bytes


@pytest.mark.asyncio
@pytest.mark.parametrize("is_small", [True, False])
async def test_a_commit_on_a_base_uploads_its_changes_and_its_index(
    any_job: IncrementJob, monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    if not is_small:
        monkeypatch.setattr(backup, "MAX_INDEX_DELTA_BYTES", 1)
    await any_job.manager.init()
    first = await any_job.commit(any_job.seal(None, LARGE))
    any_job.plan.calls.clear()
    second = await any_job.commit(any_job.seal(first.version, SECOND))
    *deltas, index = blob_names(any_job)
    assert deltas == ([] if is_small else ["changes.delta"])
    assert index.startswith("index-")
    assert second.index.dir_index == first.index.dir_index
    assert second.index.image_version == str(first.version.id)
    assert [(d.parent, d.version) for d in second.index.deltas] == [
        (str(first.version.id), str(second.version.id))
    ]
    assert second.index.prev_snapshot_index_blob_id == first.marker


@pytest.mark.asyncio
async def test_every_commit_of_a_chain_restores_its_own_content(any_job: IncrementJob) -> None:
    commits = await chain(any_job)
    assert [len(commit.index.deltas) for commit in commits] == [0, 1, 2]
    batches = (LARGE, SECOND, THIRD)
    for count, commit in enumerate(commits, 1):
        content, fetched = await any_job.restore(commit.checkpoint)
        assert content == folded(*batches[:count])
        assert fetched == commit.index.image_bytes() + commit.index.delta_bytes()


@pytest.mark.asyncio
async def test_versions_between_two_commits_go_up_as_one_blob_with_each_key_once(
    job: IncrementJob,
) -> None:
    await job.manager.init()
    first = await job.commit(job.seal(None, LARGE))
    last = await job.commit(job.seal(first.version, SECOND, {}, THIRD))
    (delta,) = last.index.deltas
    assert (delta.parent, delta.version) == (str(first.version.id), str(last.version.id))
    assert delta.content is not None
    reader = DeltaReader(io.BytesIO(delta.content), where="test")
    assert dict(list(reader)) == {**SECOND, **THIRD}
    assert reader.counts.puts + reader.counts.deletes == 3
    assert (await job.restore(last.checkpoint))[0] == folded(LARGE, SECOND, THIRD)


@pytest.mark.asyncio
async def test_changes_too_large_to_merge_go_up_as_they_are(job: IncrementJob) -> None:
    await job.manager.init()
    first = await job.commit(job.seal(None, LARGE))
    with patch.object(image_module, "_MERGE_BYTES", 0):
        last = await job.commit(job.seal(first.version, SECOND, THIRD))
    assert len(last.index.deltas) == 2
    assert (await job.restore(last.checkpoint))[0] == folded(LARGE, SECOND, THIRD)


@pytest.mark.asyncio
async def test_the_same_version_again_uploads_its_index_alone(job: IncrementJob) -> None:
    commits = await chain(job)
    job.plan.calls.clear()
    again = await job.commit(commits[-1].version)
    assert len(job.plan.called("put")) == 1
    assert again.index.deltas == commits[-1].index.without_content().deltas
    assert (await job.restore(again.checkpoint))[0] == folded(LARGE, SECOND, THIRD)


@pytest.mark.asyncio
async def test_a_snapshot_takes_the_place_of_all_deltas_and_keeps_the_files_that_stayed(
    tmp_path: Path,
) -> None:
    job = IncrementJob(tmp_path, "rocksdb", {"snapshot.max.deltas": "2"})
    commits = await chain(job)
    job.plan.calls.clear()
    image = await job.commit(job.seal(commits[-1].version, {b"x": b"y"}))
    assert image.index.deltas == ()
    assert image.index.image_version is None
    shared = image.index.blob_ids() & commits[0].index.blob_ids()
    assert shared
    assert len(image.index.blob_ids()) > len(shared)
    assert (await job.restore(image.checkpoint))[0] == folded(LARGE, SECOND, THIRD, {b"x": b"y"})
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_changes_larger_than_the_new_files_make_a_snapshot(job: IncrementJob) -> None:
    await job.manager.init()
    first = await job.commit(job.seal(None, LARGE))
    removed: Changes = dict.fromkeys(LARGE)
    second = await job.commit(job.seal(first.version, removed, {b"k": b"v"}))
    assert second.index.deltas == ()
    assert (await job.restore(second.checkpoint))[0] == {b"k": b"v"}


@pytest.mark.asyncio
async def test_without_deltas_by_the_settings_every_commit_uploads_files(tmp_path: Path) -> None:
    job = IncrementJob(tmp_path, "memory", {"snapshot.max.delta.ratio": "0"})
    commits = await chain(job)
    assert all(not commit.index.deltas for commit in commits)
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_a_base_that_is_no_ancestor_makes_the_upload_full(any_job: IncrementJob) -> None:
    commits = await chain(any_job)
    rewound = await any_job.commit(any_job.seal(commits[0].version, {b"other": b"branch"}))
    assert rewound.index.deltas == ()
    assert rewound.index.prev_snapshot_index_blob_id is None
    assert not rewound.index.blob_ids() & commits[-1].index.blob_ids()
    content, _ = await any_job.restore(rewound.checkpoint)
    assert content == folded(LARGE, {b"other": b"branch"})


@pytest.mark.asyncio
async def test_changes_that_are_not_all_at_hand_make_a_snapshot(job: IncrementJob) -> None:
    commits = await chain(job)
    lost = job.seal(commits[-1].version, {b"lost": b"1"}, is_captured=False)
    later = await job.commit(job.seal(lost, {b"later": b"2"}))
    assert later.index.deltas == ()
    assert later.index.prev_snapshot_index_blob_id == commits[-1].marker
    content, _ = await job.restore(later.checkpoint)
    assert content == folded(LARGE, SECOND, THIRD, {b"lost": b"1", b"later": b"2"})


@pytest.mark.asyncio
@pytest.mark.parametrize("batches", [1, 2], ids=["one", "merged"])
@pytest.mark.parametrize("damage", ["flip", "unlink"])
async def test_a_damaged_local_delta_does_not_become_a_backup(
    job: IncrementJob, batches: int, damage: str
) -> None:
    commits = await chain(job)
    version = job.seal(commits[-1].version, *[{b"k%d" % n: b"v"} for n in range(batches)])
    changes = version.changes_since(STORE, commits[-1].version.id)
    assert changes is not None
    path = changes[0]
    if damage == "flip":
        flip(path)
    else:
        path.unlink()
    job.plan.calls.clear()
    with pytest.raises(VersionDamagedError):
        await job.commit(version)
    assert not job.plan.called("put")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.unlink()
    path.write_bytes(data)


@pytest.mark.asyncio
@pytest.mark.parametrize("position", [0, 1])
async def test_a_damaged_delta_blob_is_found_before_use(job: IncrementJob, position: int) -> None:
    *_, last = await chain(job)
    blob_id = last.index.deltas[position].blob_id
    data = await job.blobs.get(blob_id)
    await job.blobs.put(blob_id, data[:-1] + bytes([data[-1] ^ 1]), METADATA)
    with pytest.raises(CheckpointCorruptError, match="differs from its digest"):
        await job.restore(last.checkpoint)


@pytest.mark.asyncio
async def test_a_lost_delta_blob_is_found(job: IncrementJob) -> None:
    *_, last = await chain(job)
    await job.blobs.delete(last.index.deltas[0].blob_id)
    with pytest.raises(BlobNotFoundError):
        await job.restore(last.checkpoint)


@pytest.mark.asyncio
async def test_a_delta_that_is_another_one_than_its_index_says_is_refused(
    job: IncrementJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "MAX_INDEX_DELTA_BYTES", 0)
    *_, last = await chain(job)
    one, two = last.index.deltas
    swapped = tuple(
        msgspec.structs.replace(right, parent=place.parent, version=place.version)
        for place, right in ((one, two), (two, one))
    )
    checkpoint = await with_index(job, msgspec.structs.replace(last.index, deltas=swapped))
    with pytest.raises(CheckpointCorruptError, match="another one than its index says"):
        await job.restore(checkpoint)


@pytest.mark.asyncio
async def test_an_index_whose_deltas_do_not_lead_to_its_version_is_refused(
    job: IncrementJob,
) -> None:
    *_, last = await chain(job)
    one, two = last.index.deltas
    for deltas in ((two,), (one,), (two, one), (one, one, two)):
        with pytest.raises(ValueError, match="delta"):
            msgspec.structs.replace(last.index, deltas=deltas)
    full = msgspec.structs.replace(last.index, full_index_blob_id=None, full_deltas=0)
    text = encode_index(full).replace(two.parent.encode(), b"9_00000009", 1)
    with pytest.raises(CheckpointCorruptError):
        decode_index(text, where="test")


@pytest.mark.asyncio
async def test_a_local_version_on_the_way_leaves_only_the_later_deltas_to_fetch(
    any_job: IncrementJob,
) -> None:
    first, second, last = await chain(any_job)
    content, fetched = await any_job.restore(last.checkpoint, first.version, second.version)
    assert content == folded(LARGE, SECOND, THIRD)
    assert fetched == last.index.deltas[-1].size
    second.version.verify()


@pytest.mark.asyncio
async def test_deltas_are_never_applied_to_a_file_of_a_local_version(tmp_path: Path) -> None:
    job = IncrementJob(tmp_path, "rocksdb")
    first, _, last = await chain(job)
    content, fetched = await job.restore(last.checkpoint, first.version)
    assert (content, fetched) == (folded(LARGE, SECOND, THIRD), last.index.delta_bytes())
    for path in first.version.store_directory(STORE).iterdir():
        assert path.suffix == ".sst" or path.stat().st_nlink == 1
    first.version.verify()
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_the_identical_local_version_leaves_nothing_to_fetch(any_job: IncrementJob) -> None:
    *_, last = await chain(any_job)
    any_job.plan.calls.clear()
    content, fetched = await any_job.restore(last.checkpoint, last.version)
    assert (content, fetched) == (folded(LARGE, SECOND, THIRD), 0)
    assert not any_job.plan.called("download")
    last.version.verify()


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", ["flip", "unlink"])
async def test_a_local_version_that_is_not_whole_is_not_built_on(
    job: IncrementJob, damage: str
) -> None:
    first, second, last = await chain(job)
    path = next(second.version.store_directory(STORE).iterdir())
    if damage == "flip":
        flip(path)
    else:
        path.unlink()
    content, fetched = await job.restore(last.checkpoint, first.version, second.version)
    assert content == folded(LARGE, SECOND, THIRD)
    assert fetched == last.index.delta_bytes()


@pytest.mark.asyncio
async def test_a_restored_version_is_a_base_though_its_files_are_not_those_backed_up(
    any_job: IncrementJob,
) -> None:
    *_, last = await chain(any_job)
    any_job.versions.retain((), last.version.id.batch)
    work = any_job.versions.begin("fe", None, [STORE])
    await any_job.restore_into(work, last.checkpoint)
    adopted = any_job.versions.adopt(work, last.version.id, None, (), engines={STORE: any_job.kind})
    after = await any_job.commit(any_job.seal(adopted, {b"after": b"1"}))
    assert len(after.index.deltas) == 3
    image = await any_job.commit(any_job.seal(after.version, {b"image": b"2"}, is_captured=False))
    assert image.index.deltas == ()
    for commit, batches in (
        (after, ({b"after": b"1"},)),
        (image, ({b"after": b"1"}, {b"image": b"2"})),
    ):
        content, _ = await any_job.restore(commit.checkpoint)
        assert content == folded(LARGE, SECOND, THIRD, *batches)


@pytest.mark.asyncio
async def test_clean_up_keeps_every_delta_and_image_that_a_retained_commit_needs(
    job: IncrementJob,
) -> None:
    commits = await chain(job)
    last = await job.commit(job.seal(commits[-1].version, {b"k": b"v"}))
    while len(job.commits) > 1:
        job.release(0)
        await job.clean_up()
        await job.check_ledger()
    content, _ = await job.restore(last.checkpoint)
    assert content == folded(LARGE, SECOND, THIRD, {b"k": b"v"})


@pytest.mark.asyncio
async def test_clean_up_collects_the_deltas_that_a_snapshot_has_replaced(tmp_path: Path) -> None:
    job = IncrementJob(tmp_path, "memory", {"snapshot.max.deltas": "2"})
    commits = await chain(job)
    await job.commit(job.seal(commits[-1].version, {b"k": b"v"}))
    while len(job.commits) > 1:
        job.release(0)
    await job.clean_up()
    await job.check_ledger()
    assert not [name for name in await job.blobs.list("") if name.endswith("-changes.delta")]
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_clean_up_collects_the_deltas_of_a_store_that_the_configuration_has_dropped(
    job: IncrementJob,
) -> None:
    commits = await chain(job)
    await job.manager.clean_up([{}], [commit.attempt for commit in commits])
    assert await job.blobs.list("") == []


def test_applying_stops_within_a_delta_when_it_is_cancelled_and_closes_the_store(
    tmp_path: Path,
) -> None:
    store = MemoryStore(STORE, tmp_path / "db", is_new=True)
    stop = threading.Event()
    opened: list[str] = []

    def open_it() -> MemoryStore:
        opened.append("store")
        stop.set()
        return store

    delta = tmp_path / "d"
    job = IncrementJob(tmp_path)
    large = {b"b%d" % number: bytes(200_000) for number in range(3)}
    version = job.seal(job.seal(None, {b"a": b"1"}), large)
    changes = version.changes_since(STORE, version.lineage[0])
    assert changes is not None
    delta.hardlink_to(changes[0])
    blob = DeltaBlob(
        parent=str(version.lineage[0]),
        version=str(version.id),
        blob_id="b",
        size=1,
        checksum=0,
        sha256="0" * 64,
    )
    load = DeltaLoad(open_it)
    load.apply(FetchedDelta(blob, delta), stop)
    load.close()
    assert MemoryStore(STORE, tmp_path / "db", is_new=True).get(b"b2") is None
    DeltaLoad(open_it).apply(FetchedDelta(blob, delta), stop)
    assert opened == ["store"]
    forget_root(str(tmp_path))
