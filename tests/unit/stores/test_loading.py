"""Stores that a restore loads: a chain of deltas by `load` gives what a dict gives."""

import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change, DeltaHeader, DeltaReader, DeltaWriter
from statekeep.stores.factory import open_store, open_to_load
from statekeep.stores.rocksdb import RocksDbOptions, RocksDbStore
from statekeep.testing.store_tests import KeyValueStoreMachine, KeyValueStoreTests

NAME = StoreName("state")
SMALL_BUFFERS = RocksDbOptions(write_buffer_bytes=64 << 10)
"""Small enough that a test makes many sorted runs."""
KEYS = st.sampled_from([b"", b"\x00", b"a", b"ab", b"b" * 300, b"\xff", b"\xff\xff"])
VALUES = st.one_of(st.none(), st.just(b""), st.binary(max_size=20), st.just(bytes(40_000)))
CHAINS = st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=10), max_size=8)


class TestRocksDbStoreToLoad(KeyValueStoreTests):
    @override
    def open_store(self, directory: Path) -> KeyValueStore:
        return open_to_load(NAME, "rocksdb", directory, is_new=not directory.exists())


class LoadingMachine(KeyValueStoreMachine):
    @override
    def open_store(self, directory: Path) -> KeyValueStore:
        return open_to_load(
            NAME, "rocksdb", directory, SMALL_BUFFERS, is_new=not directory.exists()
        )


LoadingMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, derandomize=True
)
TestLoadingMachine = LoadingMachine.TestCase


@pytest.mark.parametrize("kind", ["rocksdb", "memory"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(base=st.dictionaries(KEYS, st.binary(max_size=20)), chain=CHAINS)
def test_a_chain_of_deltas_on_an_image_gives_what_a_dict_gives(
    kind: Literal["rocksdb", "memory"], base: Mapping[bytes, bytes], chain: Sequence[list[Change]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "db"
        image = open_store(NAME, kind, directory, is_new=True)
        image.write(base)
        image.close()
        load(directory, kind, chain)
        assert content_at(directory, kind) == sorted(folded(base, chain).items())


def test_a_deletion_wins_over_the_image_in_another_sorted_run(tmp_path: Path) -> None:
    image = open_store(NAME, "rocksdb", tmp_path, is_new=True)
    image.write({b"%04d" % number: b"old" for number in range(5_000)})
    image.close()
    chain: list[list[Change]] = [
        [(b"%04d" % number, None) for number in range(0, 5_000, 2)],
        [(b"%04d" % number, b"new") for number in range(0, 5_000, 4)],
    ]
    load(tmp_path, "rocksdb", chain)
    expected = folded({b"%04d" % number: b"old" for number in range(5_000)}, chain)
    assert content_at(tmp_path, "rocksdb") == sorted(expected.items())


def test_values_larger_than_the_write_buffers_are_loaded(tmp_path: Path) -> None:
    values = {b"%d" % number: bytes([number]) * (3 << 20) for number in range(4)}
    load(tmp_path, "rocksdb", [list(values.items())])
    assert content_at(tmp_path, "rocksdb") == sorted(values.items())


def test_many_runs_are_merged_before_they_would_slow_down_a_store(tmp_path: Path) -> None:
    store = RocksDbStore(NAME, tmp_path, SMALL_BUFFERS, is_to_load=True, is_new=True)
    for number in range(100):
        store.load([(b"%04d" % number, bytes(60_000)), (b"%04d" % (number + 1), b"")])
        store.flush()
    store.close()
    assert len(list(tmp_path.glob("*.sst"))) < 40
    expected = {b"%04d" % number: bytes(60_000) for number in range(100)} | {b"0100": b""}
    assert content_at(tmp_path, "rocksdb") == sorted(expected.items())


def test_what_was_loaded_is_read_before_the_store_is_closed(tmp_path: Path) -> None:
    store = open_to_load(NAME, "rocksdb", tmp_path, SMALL_BUFFERS, is_new=True)
    store.load([(b"b", b"1"), (b"a", b"1"), (b"b", b"2"), (b"c", b"1"), (b"c", None)])
    store.flush()
    assert list(store.scan()) == [(b"a", b"1"), (b"b", b"2")]
    store.close()


def load(
    directory: Path, kind: Literal["rocksdb", "memory"], chain: Sequence[list[Change]]
) -> None:
    """Write each part as a delta, and load it as a restore does."""
    store = open_to_load(NAME, kind, directory, SMALL_BUFFERS, is_new=True)
    for records in chain:
        target = io.BytesIO()
        writer = DeltaWriter(target, DeltaHeader())
        writer.write_entries(records)
        writer.finish()
        target.seek(0)
        for block in DeltaReader(target, where="test").blocks():
            store.load(block)
    store.close()


def folded(base: Mapping[bytes, bytes], chain: Sequence[list[Change]]) -> dict[bytes, bytes]:
    content = dict(base)
    for records in chain:
        for key, value in records:
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
    return content


def content_at(
    directory: Path, kind: Literal["rocksdb", "memory"]
) -> Sequence[tuple[bytes, bytes]]:
    """Return what an ordinary store scans, in its order."""
    store = open_store(NAME, kind, directory, is_new=False)
    try:
        return list(store.scan())
    finally:
        store.close()
