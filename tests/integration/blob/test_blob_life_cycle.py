"""A task's backups in real object stores: packed, encrypted, tagged until they are complete."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from encoded_kit import KEY_LINE
from servers.buckets import Bucket

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.fault_points import fault_handler
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

NEEDLE = b"a customer's secret "
FIRST = {
    **{f"{number:06}.sst": NEEDLE * number for number in range(1, 40)},
    "large.sst": NEEDLE * 500_000,
    "empty": b"",
}
SECOND = {**FIRST, "000001.sst": b"changed" + NEEDLE}
TAGS = {"statekeep": "uncommitted"}


@pytest_asyncio.fixture
async def task(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BackendHarness]:
    monkeypatch.setenv("STATEKEEP_TEST_KEYS", KEY_LINE)
    settings = {
        **bucket.settings,
        "compression": "zstd",
        "encryption": "aes-256-gcm",
        "encryption.keys": "env:STATEKEEP_TEST_KEYS",
        "part.bytes": "5MiB",
        "uncommitted.tags": "statekeep=uncommitted",
        "retry.policy.max.retries": "3",
    }
    factory = BlobBackendFactory(BackendName("blob"), settings)
    harness = BackendHarness(factory, SerialExecutor(), SystemClock(), tmp_path)
    await harness.start()
    yield harness
    await harness.close()


@pytest.mark.asyncio
async def test_packed_and_encrypted_commits_restore_and_leave_what_is_reached(
    task: BackendHarness, bucket: Bucket
) -> None:
    first = await task.commit(task.seal(FIRST))
    # 39 small files in one blob, a large one in two pieces, and the index.
    assert len(bucket.names()) == 4
    second = await task.commit(task.seal(SECOND))
    assert len(bucket.names()) == 6
    assert not [name for name in bucket.names() if NEEDLE in bucket.read(name)]
    for commit, content in ((first, FIRST), (second, SECOND)):
        assert (await task.restore(commit.checkpoint)).content == {STORE: content}
    task.release(first)
    await task.clean_up()
    assert len(bucket.names()) == 5
    assert (await task.restore(second.checkpoint)).content == {STORE: SECOND}


@pytest.mark.asyncio
async def test_what_is_complete_has_no_tag_and_what_a_crash_left_keeps_it(
    task: BackendHarness, bucket: Bucket
) -> None:
    await task.commit(task.seal(FIRST))
    complete = set(bucket.names())
    assert [bucket.tags(name) for name in complete] == [{}] * 4

    def crash(point: str) -> None:
        if point == "upload.after_index":
            raise SystemError(point)

    with fault_handler(crash), pytest.raises(SystemError):
        await task.upload(task.open_attempt(task.seal(SECOND)))
    left = set(bucket.names()) - complete
    assert [bucket.tags(name) for name in left] == [TAGS] * 2
