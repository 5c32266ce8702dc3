"""State that is encrypted or compressed before it leaves the machine."""

import base64
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from encoded_kit import KEY_LINE, SECRET, full_index, place_of, read_stream

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.index import StoredForm
from statekeep.backends.blob.names import is_index
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import CheckpointCorruptError, ConfigError, KeyUnavailableError
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import FaultPlan, faulty_blob_factory

OLD_LINE = f"2026-10 {base64.b64encode(b'o' * 32).decode()}"
NEEDLE = b"a customer's secret "
FIRST = {"CURRENT": b"1" + NEEDLE, "a.sst": NEEDLE * 20_000, "sub/b.sst": NEEDLE * 10, "empty": b""}
SECOND = {**FIRST, "CURRENT": b"2" + NEEDLE}
ENCRYPTED = {"encryption": "aes-256-gcm"}
PLAIN = StoreName("plain")

FactoryOf = Callable[[Mapping[str, str]], BlobBackendFactory]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    forget_root(str(tmp_path))


@pytest.fixture
def blobs(root: str) -> dict[str, bytes]:
    return MemoryBlobStoreManager(root, SerialExecutor())._blobs


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEY_LINE)
    return path


@pytest.fixture
def factory_of(root: str, keys: Path) -> FactoryOf:
    def make(settings: Mapping[str, str]) -> BlobBackendFactory:
        merged = {"encryption.keys": f"file:{keys}", **settings}
        return faulty_blob_factory(root, FaultPlan(), merged)

    return make


@pytest_asyncio.fixture
async def task(factory_of: FactoryOf, tmp_path: Path) -> AsyncIterator[BackendHarness]:
    harness = BackendHarness(factory_of(ENCRYPTED), SerialExecutor(), FakeClock(), tmp_path)
    await harness.start()
    yield harness
    await harness.close()


def file_blobs(blobs: Mapping[str, bytes]) -> list[str]:
    return sorted(name for name in blobs if not is_index(name))


@pytest.mark.asyncio
@pytest.mark.parametrize("part_bytes", ["1MiB", "8MiB"])
async def test_nothing_of_the_state_and_of_its_index_can_be_read_in_the_store(
    factory_of: FactoryOf,
    blobs: dict[str, bytes],
    tmp_path: Path,
    part_bytes: str,
) -> None:
    factory = factory_of(ENCRYPTED | {"part.bytes": part_bytes})
    task = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    content = {**FIRST, "large.sst": bytes(3 << 20) + NEEDLE}
    commit = await task.commit(task.seal(content))
    for stored in blobs.values():
        assert NEEDLE not in stored
        assert b"a.sst" not in stored
        assert SECRET not in stored
    assert (await task.restore(commit.checkpoint)).content == {STORE: content}
    pieces = [name for name in blobs if name.endswith("-large.sst")]
    assert len(pieces) == (4 if part_bytes == "1MiB" else 1)
    await task.close()


@pytest.mark.asyncio
async def test_compression_alone_makes_blobs_smaller_and_needs_no_key(
    root: str, blobs: dict[str, bytes], tmp_path: Path
) -> None:
    factory = faulty_blob_factory(root, FaultPlan(), {"compression": "zstd"})
    task = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    commit = await task.commit(task.seal(FIRST))
    assert sum(map(len, blobs.values())) < len(NEEDLE) * 1000
    assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST}
    await task.close()


@pytest.mark.asyncio
async def test_a_store_may_differ_from_its_backend(
    factory_of: FactoryOf,
    blobs: dict[str, bytes],
    tmp_path: Path,
) -> None:
    factory = factory_of(ENCRYPTED | {"stores.plain.blob.encryption": "none"})
    stores = (STORE, PLAIN)
    task = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path, stores=stores)
    await task.start()
    commit = await task.commit(task.seal({STORE: FIRST, PLAIN: FIRST}))
    readable = [name for name, stored in blobs.items() if NEEDLE in stored]
    assert readable
    assert all("/plain/" in name for name in readable)
    assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST, PLAIN: FIRST}
    await task.close()


@pytest.mark.asyncio
async def test_after_a_rotation_old_commits_are_read_and_new_ones_need_the_new_key_alone(
    task: BackendHarness, keys: Path
) -> None:
    keys.write_text(OLD_LINE)
    old = await task.commit(task.seal(FIRST))
    keys.write_text(f"{KEY_LINE}\n{OLD_LINE}")
    new = await task.commit(task.seal(SECOND))
    assert (await task.restore(old.checkpoint)).content == {STORE: FIRST}
    await task.commit(task.seal(SECOND))
    task.release(old)
    await task.clean_up()
    keys.write_text(KEY_LINE)
    assert (await task.restore(new.checkpoint)).content == {STORE: SECOND}
    await task.clean_up()


@pytest.mark.asyncio
async def test_an_upload_builds_on_a_base_of_its_own_key_only(
    task: BackendHarness, blobs: dict[str, bytes], keys: Path
) -> None:
    await task.commit(task.seal(FIRST))
    count = len(file_blobs(blobs))
    await task.commit(task.seal(SECOND))
    assert len(file_blobs(blobs)) == count + 1
    keys.write_text(f"{OLD_LINE}\n{KEY_LINE}")
    await task.commit(task.seal(SECOND))
    assert len(file_blobs(blobs)) == 2 * count + 1


@pytest.mark.asyncio
async def test_encryption_that_is_switched_on_leaves_nothing_readable_behind(
    task: BackendHarness,
    factory_of: FactoryOf,
    blobs: dict[str, bytes],
    tmp_path: Path,
) -> None:
    plain = BackendHarness(factory_of({}), SerialExecutor(), FakeClock(), tmp_path / "plain")
    await plain.start()
    commits = [await plain.commit(plain.seal(FIRST))]
    await plain.close()
    task.commits[:] = commits
    task.seal(FIRST)
    await task.commit(task.seal(SECOND, parent=commits[0].context.version))
    task.release(commits[0])
    await task.clean_up()
    assert not [name for name, stored in blobs.items() if NEEDLE in stored]


@pytest.mark.asyncio
async def test_a_missing_key_is_named_and_nothing_is_restored(
    task: BackendHarness, keys: Path, tmp_path: Path
) -> None:
    commit = await task.commit(task.seal(FIRST))
    keys.write_text(OLD_LINE)
    other = faulty_blob_factory(
        str(tmp_path), FaultPlan(), ENCRYPTED | {"encryption.keys": f"file:{keys}"}
    )
    with pytest.raises(KeyUnavailableError, match="key_id=2026-11"):
        await task.restore(commit.checkpoint, factory=other)


@pytest.mark.asyncio
async def test_a_backend_without_keys_says_so_instead_of_calling_the_state_damaged(
    task: BackendHarness, root: str
) -> None:
    commit = await task.commit(task.seal(FIRST))
    with pytest.raises(KeyUnavailableError, match="no keys are configured"):
        await task.restore(commit.checkpoint, factory=faulty_blob_factory(root, FaultPlan()))


@pytest.mark.asyncio
async def test_a_wrong_key_under_the_right_id_restores_nothing(
    task: BackendHarness, keys: Path, root: str
) -> None:
    commit = await task.commit(task.seal(FIRST))
    keys.write_text(OLD_LINE.replace("2026-10", "2026-11"))
    other = faulty_blob_factory(root, FaultPlan(), {"encryption.keys": f"file:{keys}"})
    with pytest.raises(KeyUnavailableError, match="another key has the id"):
        await task.restore(commit.checkpoint, factory=other)


@pytest.mark.asyncio
async def test_a_lost_key_of_the_base_makes_the_next_upload_full(
    task: BackendHarness, keys: Path, caplog: pytest.LogCaptureFixture, root: str, tmp_path: Path
) -> None:
    base = await task.commit(task.seal(FIRST))
    keys.write_text(OLD_LINE)
    factory = faulty_blob_factory(
        root, FaultPlan(), ENCRYPTED | {"encryption.keys": f"file:{keys}"}
    )
    later = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path / "later")
    later.commits.append(base)
    await later.start()
    with caplog.at_level(logging.WARNING):
        commit = await later.commit(later.seal(SECOND, parent=base.context.version))
    assert "base snapshot is unusable" in caplog.text
    assert (await later.restore(commit.checkpoint)).content == {STORE: SECOND}
    later.abort(later.open_attempt(later.seal(SECOND)))
    with pytest.raises(KeyUnavailableError):
        await later.clean_up()
    await later.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("packed", ["256KiB", "0"], ids=["packed", "unpacked"])
async def test_damage_and_swaps_in_the_store_are_found_before_anything_is_restored(
    factory_of: FactoryOf,
    blobs: dict[str, bytes],
    tmp_path: Path,
    packed: str,
) -> None:
    factory = factory_of(ENCRYPTED | {"pack.max.file.bytes": packed})
    task = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    commit = await task.commit(task.seal(FIRST))
    whole = dict(blobs)
    for name in whole:
        blobs[name] = whole[name][:-1] + bytes([whole[name][-1] ^ 1])
        with pytest.raises(CheckpointCorruptError):
            await task.restore(commit.checkpoint)
        blobs.update(whole)
    one, two = file_blobs(blobs)[:2]
    blobs[one], blobs[two] = whole[two], whole[one]
    with pytest.raises(CheckpointCorruptError):
        await task.restore(commit.checkpoint)
    await task.close()


@pytest.mark.asyncio
async def test_no_key_and_no_state_is_ever_logged(
    task: BackendHarness, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        commit = await task.commit(task.seal(FIRST))
        await task.restore(commit.checkpoint)
    secret = KEY_LINE.split()[1]
    assert secret not in caplog.text
    assert SECRET.hex() not in caplog.text
    assert NEEDLE.decode() not in caplog.text


@pytest.mark.asyncio
async def test_a_missing_key_is_found_at_the_start(factory_of: FactoryOf, keys: Path) -> None:
    keys.unlink()
    admin = factory_of(ENCRYPTED).admin(SerialExecutor(), FakeClock())
    with pytest.raises(ConfigError, match="keys cannot be read"):
        await admin.validate_resources()
    await admin.close()


@pytest.mark.asyncio
async def test_the_form_and_the_key_of_each_file_are_in_its_index(
    task: BackendHarness, blobs: dict[str, bytes]
) -> None:
    commit = await task.commit(task.seal(FIRST))
    marker = commit.markers[STORE]
    index = full_index(read_stream(blobs[marker], place_of(marker)), where="test")
    forms = {file.file_name: file.stored_form for file in index.files()}
    assert forms.pop("empty") is None
    assert set(forms.values()) == {
        StoredForm(compression="none", encryption="aes-256-gcm", key_id="2026-11")
    }
