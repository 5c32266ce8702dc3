"""Indexes that only say what they add to an earlier one."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from increments_kit import IncrementJob, Made, folded

from statekeep.backends.blob.codec import Codec, EncodingSettings
from statekeep.backends.blob.encoded_stream import Encoding
from statekeep.backends.blob.index import IndexAddition, decode_index, encode_index
from statekeep.backends.blob.index_blobs import IndexBlobs
from statekeep.backends.blob.settings import MAX_ADDED_DELTAS
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage.memory import forget_root
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import STORE

LARGE = {b"%05d" % key: b"v" * 100 for key in range(2_000)}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[IncrementJob]:
    yield IncrementJob(tmp_path)
    forget_root(str(tmp_path))


async def commit_often(job: IncrementJob, commits: int) -> list[Made]:
    """Commit an image, and then one changed key so often."""
    await job.manager.init()
    made = [await job.commit(job.seal(None, LARGE))]
    for number in range(commits):
        made.append(await job.commit(job.seal(made[-1].version, {b"x": b"%d" % number})))
    return made


async def raw(job: IncrementJob, made: Made) -> bytes:
    return await job.blobs.get(made.marker)


@pytest.mark.asyncio
async def test_an_index_grows_no_further_than_to_a_bound_however_many_deltas_there_are(
    job: IncrementJob,
) -> None:
    made = await commit_often(job, 4 * MAX_ADDED_DELTAS)
    sizes = [len(await raw(job, one)) for one in made[1:]]
    full = [n for n, one in enumerate(made[1:], 1) if one.index.full_index_blob_id is None]
    assert full == [33, 66, 99]
    additions = [size for n, size in enumerate(sizes, 1) if n not in full]
    assert max(additions) < 20_000
    assert max(additions[-20:]) < 1.1 * max(additions[:32])
    assert len(made[-1].index.deltas) == len(made) - 1


@pytest.mark.asyncio
async def test_every_commit_restores_its_own_content_whatever_its_index_adds_to(
    job: IncrementJob,
) -> None:
    made = await commit_often(job, MAX_ADDED_DELTAS + 3)
    for number in (1, 2, 32, 33, 34, 35):
        content, _ = await job.restore(made[number].checkpoint)
        assert content == folded(LARGE, {b"x": b"%d" % (number - 1)})


@pytest.mark.asyncio
async def test_another_process_goes_on_where_the_indexes_stand(job: IncrementJob) -> None:
    made = await commit_often(job, 3)
    job.manager = job.new_manager()
    await job.manager.init()
    last = await job.commit(job.seal(made[-1].version, {b"x": b"last"}))
    assert last.index.full_index_blob_id == made[0].marker
    assert [delta.version for delta in last.index.deltas] == [
        str(one.version.id) for one in (*made[1:], last)
    ]
    assert (await job.restore(last.checkpoint))[0] == folded(LARGE, {b"x": b"last"})


@pytest.mark.asyncio
async def test_a_clean_up_keeps_the_indexes_that_a_retained_one_needs(job: IncrementJob) -> None:
    made = await commit_often(job, MAX_ADDED_DELTAS + 5)
    while len(job.commits) > 1:
        job.release(0)
    await job.clean_up()
    last = made[-1]
    assert last.index.full_index_blob_id == made[33].marker
    # The full one, and those that hold a delta; no blob of the image has gone.
    listed = set(await job.blobs.list(""))
    assert {one.marker for one in made if one.marker in listed} == {o.marker for o in made[1:]}
    assert made[0].marker not in listed
    assert (await job.restore(last.checkpoint))[0] == folded(LARGE, {b"x": b"36"})
    await job.check_ledger()


@pytest.mark.asyncio
async def test_a_lost_or_changed_full_index_is_damage(job: IncrementJob) -> None:
    first, *_, last = await commit_often(job, 2)
    content = await raw(job, first)
    await job.blobs.delete(first.marker)
    with pytest.raises(BlobNotFoundError):
        await job.restore(last.checkpoint)
    await job.blobs.put(first.marker, content[:-2] + b" }", BlobMetadata(None, None, "x"))
    with pytest.raises(CheckpointCorruptError, match="differs from its digest"):
        await job.restore(last.checkpoint)


@pytest.mark.asyncio
@pytest.mark.parametrize("lost", [0, MAX_ADDED_DELTAS])
async def test_a_lost_index_is_found_when_a_full_one_is_due_and_everything_is_uploaded_anew(
    job: IncrementJob, lost: int
) -> None:
    """The manager has read the full one once, as another process wrote it."""
    made = await commit_often(job, 1)
    job.manager = job.new_manager()
    await job.manager.init()
    for number in range(1, MAX_ADDED_DELTAS):
        made.append(await job.commit(job.seal(made[-1].version, {b"x": b"%d" % number})))
    await job.blobs.delete(made[lost].marker)
    last = await job.commit(job.seal(made[-1].version, {b"x": b"last"}))
    assert last.index.deltas == ()
    assert (await job.restore(last.checkpoint))[0] == folded(LARGE, {b"x": b"last"})


@pytest.mark.asyncio
async def test_an_addition_joins_nothing_but_the_full_index_of_its_own_store(
    job: IncrementJob,
) -> None:
    first, second, third = await commit_often(job, 2)
    addition = decode_index(await raw(job, third), where="x")
    assert isinstance(addition, IndexAddition)
    assert [delta.version for delta in addition.deltas] == [
        str(one.version.id) for one in (second, third)
    ]
    metadata = msgspec.structs.replace(first.index.snapshot_metadata, store_name="other")
    other = msgspec.structs.replace(first.index, snapshot_metadata=metadata)
    later = msgspec.structs.replace(first.index, version="9_00000009")
    for full in (other, later, second.index):
        with pytest.raises(CheckpointCorruptError, match="full="):
            addition.joined(full, where="x")
    assert addition.joined(first.index, where="x").stored_at(third.marker) == third.index


@pytest.mark.asyncio
async def test_an_index_that_says_it_holds_a_delta_has_to_hold_it(job: IncrementJob) -> None:
    _, second = await commit_often(job, 1)
    (delta,) = second.index.deltas
    written = json.loads(await raw(job, second))
    written["deltas"][0]["content"] = "AAAA"
    with pytest.raises(CheckpointCorruptError, match="cannot be read"):
        decode_index(json.dumps(written).encode(), where="x")
    lacking = msgspec.structs.replace(delta, version="9_00000009", content=None)
    indexes = IndexBlobs(job.blobs, Codec(EncodingSettings(), None, bytes), SerialExecutor())
    assert delta.content is not None
    assert await indexes.load_delta(second.index.without_content().deltas[0]) == delta.content
    with pytest.raises(CheckpointCorruptError, match="not in its index"):
        await indexes.load_delta(lacking)


@pytest.mark.asyncio
async def test_an_addition_to_an_addition_is_refused(job: IncrementJob) -> None:
    _, second, third = await commit_often(job, 2)
    nested = msgspec.structs.replace(
        third.index, full_index_blob_id=second.marker, full_deltas=len(second.index.deltas)
    )
    indexes = IndexBlobs(job.blobs, Codec(EncodingSettings(), None, bytes), SerialExecutor())
    metadata = BlobMetadata(None, STORE, "x")
    marker = await indexes.put("job/x/1-1/", "aa", nested, metadata, Encoding())
    with pytest.raises(CheckpointCorruptError, match="adds to one that adds"):
        await indexes.load(marker)
    assert b"dir-index" not in encode_index(nested)
