"""RocksDbStore: the conformance kit, options on reopen, damage."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import BackendClosedError, ConfigError, StateBackupError, VersionDamagedError
from statekeep.stores import rocksdb
from statekeep.stores.base import KeyValueStore
from statekeep.stores.rocksdb import RocksDbOptions, RocksDbStore
from statekeep.testing.store_tests import KeyValueStoreMachine, KeyValueStoreTests

NAME = StoreName("state")


class TestRocksDbStore(KeyValueStoreTests):
    @override
    def open_store(self, directory: Path) -> KeyValueStore:
        return RocksDbStore(NAME, directory, is_new=not directory.exists())


class RocksDbMachine(KeyValueStoreMachine):
    @override
    def open_store(self, directory: Path) -> KeyValueStore:
        return RocksDbStore(NAME, directory, is_new=not directory.exists())


RocksDbMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, derandomize=True
)
TestRocksDbMachine = RocksDbMachine.TestCase


def engine_options(directory: Path) -> dict[str, str]:
    """What the engine itself says it runs with: its newest OPTIONS file."""
    newest = max(directory.glob("OPTIONS-*"), key=lambda path: path.name)
    return dict(re.findall(r"^\s*(\w+)=(.*)$", newest.read_text(), re.MULTILINE))


def test_many_keys_are_read_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb, "_READ_CHUNK", 2)
    store = RocksDbStore(NAME, tmp_path, is_new=True)
    store.write({b"%d" % number: b"v%d" % number for number in range(5)})
    keys = [b"4", b"x", b"0", b"0", b"3"]
    assert store.get_many(keys) == [b"v4", None, b"v0", b"v0", b"v3"]
    store.close()


def test_options_are_applied_anew_when_a_store_is_reopened(tmp_path: Path) -> None:
    RocksDbStore(NAME, tmp_path, is_new=True).close()
    changed = RocksDbOptions(
        write_buffer_bytes=1 << 20, compaction_style="level", bloom_bits=0, compression="none"
    )
    RocksDbStore(NAME, tmp_path, changed, is_new=True).close()
    found = engine_options(tmp_path)
    assert found["write_buffer_size"] == str(1 << 20)
    assert found["compaction_style"] == "kCompactionStyleLevel"
    assert found["compression"] == "kNoCompression"
    assert found["filter_policy"] == "nullptr"


def test_options_without_a_word_are_the_defaults_whatever_was_there_before(tmp_path: Path) -> None:
    RocksDbStore(NAME, tmp_path, RocksDbOptions(compaction_style="level"), is_new=True).close()
    RocksDbStore(NAME, tmp_path, is_new=True).close()
    found = engine_options(tmp_path)
    assert found["compaction_style"] == "kCompactionStyleUniversal"
    assert found["compression"] == "kLZ4Compression"
    assert found["filter_policy"].startswith("bloomfilter")


def test_options_are_those_of_the_configuration() -> None:
    assert RocksDbOptions.of(StoreSettings("state")) == RocksDbOptions()


def test_a_store_without_cache_and_filter_works(tmp_path: Path) -> None:
    store = RocksDbStore(
        NAME, tmp_path, RocksDbOptions(block_cache_bytes=0, bloom_bits=0), is_new=True
    )
    store.put(b"a", b"1")
    assert store.get(b"a") == b"1"
    store.close()


def test_no_write_ahead_log_is_written(tmp_path: Path) -> None:
    store = RocksDbStore(NAME, tmp_path, is_new=True)
    store.write({b"%05d" % number: b"v" * 100 for number in range(10_000)})
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log")) == 0
    store.close()


def test_a_store_that_is_open_already_is_not_opened_again(tmp_path: Path) -> None:
    store = RocksDbStore(NAME, tmp_path, is_new=True)
    with pytest.raises(StateBackupError, match="cannot open store: store=state"):
        RocksDbStore(NAME, tmp_path, is_new=True)
    store.close()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store of which one block in the middle of a file has a flipped bit."""
    store = RocksDbStore(NAME, tmp_path, RocksDbOptions(compression="none"), is_new=True)
    store.write({b"%05d" % number: b"v" * 100 for number in range(10_000)})
    store.close()
    (file,) = tmp_path.glob("*.sst")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return tmp_path


def test_a_scan_over_a_damaged_block_raises_instead_of_ending_early(damaged: Path) -> None:
    store = RocksDbStore(NAME, damaged, is_new=True)
    with pytest.raises(
        VersionDamagedError, match=r"store is damaged: store=state.*hint: start again"
    ):
        list(store.scan())
    store.close()


def test_a_read_from_a_damaged_block_raises(damaged: Path) -> None:
    store = RocksDbStore(NAME, damaged, is_new=True)
    with pytest.raises(VersionDamagedError):
        store.get_many([b"%05d" % number for number in range(10_000)])
    store.close()


def test_a_database_without_its_manifest_is_refused(damaged: Path) -> None:
    for path in damaged.glob("MANIFEST-*"):
        path.unlink()
    with pytest.raises(VersionDamagedError):
        RocksDbStore(NAME, damaged, is_new=True)


def test_a_scan_says_so_when_its_store_is_closed_meanwhile(tmp_path: Path) -> None:
    store = RocksDbStore(NAME, tmp_path, is_new=True)
    store.write({b"a": b"1", b"b": b"2"})
    scan = store.scan()
    next(scan)
    store.close()
    with pytest.raises(BackendClosedError):
        next(scan)


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.get(b"a"),
        lambda store: store.get_many([b"a"]),
        lambda store: store.write({b"a": b"1"}),
        lambda store: store.flush(),
    ],
    ids=["get", "get_many", "write", "flush"],
)
def test_no_error_is_its_own_cause(tmp_path: Path, use: Callable[[RocksDbStore], object]) -> None:
    store = RocksDbStore(NAME, tmp_path, is_new=True)
    store.close()
    with pytest.raises(BackendClosedError) as caught:
        use(store)
    assert caught.value.__cause__ is None


def test_a_full_disk_is_reported_with_directory_and_setting(tmp_path: Path) -> None:
    store = RocksDbStore(NAME, tmp_path, is_new=True)
    error = store._explain(Exception("IO error: No space left on device: x.sst"), "cannot write")
    assert isinstance(error, ConfigError)
    assert str(tmp_path) in str(error)
    assert "job.logged.store.base.dir" in str(error)
    store.close()
