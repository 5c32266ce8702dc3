# ruff: noqa: D102 - the names of the tests are the sentences
"""Conformance kit for implementations of `KeyValueStore`.

A store's whole test file::

    class TestMyStore(KeyValueStoreTests):
        def open_store(self, directory: Path) -> KeyValueStore:
            return MyStore(StoreName("s"), directory)

    class MyStoreMachine(KeyValueStoreMachine):
        def open_store(self, directory: Path) -> KeyValueStore:
            return MyStore(StoreName("s"), directory)

    TestMyStoreMachine = MyStoreMachine.TestCase
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import override

from statekeep.errors import BackendClosedError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.local_files import clone_image

MANY = 25_000
"""More keys than a store may write in one call."""


class KeyValueStoreTests:
    """What every local store promises; subclass it and give `open_store`."""

    def open_store(self, directory: Path) -> KeyValueStore:
        """Open a store on ``directory``, which holds a clone of an image, or is not there yet."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> KeyValueStore:
        """A new, empty store."""
        return self.open_store(tmp_path / "store")

    def test_a_key_that_was_never_written_has_no_value(self, store: KeyValueStore) -> None:
        assert store.get(b"a") is None
        store.close()

    def test_a_value_is_read_back(self, store: KeyValueStore) -> None:
        store.put(b"a", b"1")
        assert store.get(b"a") == b"1"
        store.close()

    def test_the_later_value_of_a_key_holds(self, store: KeyValueStore) -> None:
        store.put(b"a", b"1")
        store.put(b"a", b"2")
        assert store.get(b"a") == b"2"
        store.close()

    def test_empty_keys_and_values_are_kept(self, store: KeyValueStore) -> None:
        store.write({b"": b"x", b"a": b""})
        assert store.get_many([b"", b"a"]) == [b"x", b""]
        store.close()

    def test_a_deleted_key_has_no_value(self, store: KeyValueStore) -> None:
        store.put(b"a", b"1")
        store.delete(b"a")
        assert store.get(b"a") is None
        store.close()

    def test_deleting_a_key_that_is_not_there_is_no_error(self, store: KeyValueStore) -> None:
        store.delete(b"a")
        assert list(store.scan()) == []
        store.close()

    def test_get_many_keeps_the_order_and_repetition_of_its_keys(
        self, store: KeyValueStore
    ) -> None:
        store.write({b"a": b"1", b"b": b"2"})
        assert store.get_many([b"b", b"x", b"a", b"b"]) == [b"2", None, b"1", b"2"]
        assert store.get_many([]) == []
        store.close()

    def test_one_write_may_have_more_keys_than_a_chunk(self, store: KeyValueStore) -> None:
        entries = {b"%08d" % number: b"%d" % number for number in range(MANY)}
        store.write(entries)
        assert dict(store.scan()) == entries
        store.write(dict.fromkeys(entries))
        assert list(store.scan()) == []
        store.close()

    def test_scan_is_in_order_of_the_bytes_of_keys(self, store: KeyValueStore) -> None:
        keys = [b"\xff", b"a", b"\x00", b"aa", b"B", b"\xff\x00", b""]
        store.write(dict.fromkeys(keys, b"v"))
        assert [key for key, _ in store.scan()] == sorted(keys)
        store.close()

    @pytest.mark.parametrize("prefix", [b"", b"a", b"ab", b"\xff", b"\xff\xff", b"zz"])
    def test_scan_gives_the_keys_of_its_prefix_alone(
        self, store: KeyValueStore, prefix: bytes
    ) -> None:
        keys = [b"", b"a", b"ab", b"abc", b"b", b"\xfe", b"\xff", b"\xff\xff", b"\xff\xff\x00"]
        store.write(dict.fromkeys(keys, b"v"))
        assert [key for key, _ in store.scan(prefix)] == [k for k in keys if k.startswith(prefix)]
        store.close()

    def test_scan_does_not_see_later_writes(self, store: KeyValueStore) -> None:
        store.write({b"a": b"1", b"b": b"2", b"c": b"3"})
        scan = store.scan()
        store.write({b"a": None, b"b": b"changed", b"bb": b"new"})
        assert list(scan) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
        store.close()

    def test_a_store_keeps_its_content_across_close(
        self, store: KeyValueStore, tmp_path: Path
    ) -> None:
        store.write({b"a": b"1", b"b": b"2"})
        store.delete(b"b")
        store.close()
        again = self.open_store(tmp_path / "store")
        assert list(again.scan()) == [(b"a", b"1")]
        again.close()

    def test_close_may_be_repeated(self, store: KeyValueStore) -> None:
        store.close()
        store.close()

    def test_a_closed_store_refuses_every_call(self, store: KeyValueStore, tmp_path: Path) -> None:
        store.close()
        for call in (
            lambda: store.get(b"a"),
            lambda: store.get_many([b"a"]),
            lambda: store.put(b"a", b"1"),
            lambda: store.delete(b"a"),
            lambda: store.write({b"a": b"1"}),
            store.scan,
            lambda: store.checkpoint(tmp_path / "image"),
        ):
            with pytest.raises(BackendClosedError):
                call()
        assert not (tmp_path / "image").exists()

    def test_a_scan_left_open_does_not_keep_the_store_open(
        self, store: KeyValueStore, tmp_path: Path
    ) -> None:
        store.write({b"a": b"1", b"b": b"2"})
        scan = store.scan()
        next(scan)
        store.close()
        self.open_store(tmp_path / "store").close()
        del scan

    def test_an_image_opens_with_the_content_of_its_moment(
        self, store: KeyValueStore, tmp_path: Path
    ) -> None:
        store.write({b"a": b"1", b"b": b"2"})
        store.checkpoint(tmp_path / "image")
        store.write({b"a": b"later", b"b": None, b"c": b"3"})
        assert self._content_of_clone(tmp_path) == {b"a": b"1", b"b": b"2"}
        store.close()
        assert self._content_of_clone(tmp_path) == {b"a": b"1", b"b": b"2"}

    def test_the_image_of_an_empty_store_is_an_empty_store(
        self, store: KeyValueStore, tmp_path: Path
    ) -> None:
        store.checkpoint(tmp_path / "image")
        store.put(b"a", b"1")
        store.close()
        assert self._content_of_clone(tmp_path) == {}

    def test_writing_on_after_an_image_does_not_change_a_byte_of_it(
        self, store: KeyValueStore, tmp_path: Path
    ) -> None:
        store.write({b"%04d" % number: b"v" * 100 for number in range(2_000)})
        store.checkpoint(tmp_path / "image")
        before = bytes_below(tmp_path / "image")
        store.write({b"%04d" % number: b"w" * 100 for number in range(0, 4_000, 3)})
        store.checkpoint(tmp_path / "next")
        store.close()
        assert bytes_below(tmp_path / "image") == before

    def test_writing_to_a_clone_does_not_change_a_byte_of_the_image(
        self, store: KeyValueStore, tmp_path: Path
    ) -> None:
        store.write({b"%04d" % number: b"v" * 100 for number in range(2_000)})
        store.checkpoint(tmp_path / "image")
        store.close()
        before = bytes_below(tmp_path / "image")
        clone_image(tmp_path / "image", tmp_path / "clone")
        clone = self.open_store(tmp_path / "clone")
        clone.write({b"%04d" % number: None for number in range(0, 2_000, 2)})
        clone.checkpoint(tmp_path / "next")
        clone.close()
        assert bytes_below(tmp_path / "image") == before

    def _content_of_clone(self, tmp_path: Path) -> Mapping[bytes, bytes]:
        clone_image(tmp_path / "image", tmp_path / "clone")
        clone = self.open_store(tmp_path / "clone")
        content = dict(clone.scan())
        clone.close()
        shutil.rmtree(tmp_path / "clone")
        return content


_keys = st.binary(max_size=3)
_values = st.binary(max_size=8)


class KeyValueStoreMachine(RuleBasedStateMachine):
    """Does to a store and to a dict the same things in any order, and compares them.

    A crash leaves the store as it was at its last image; everything after that is lost.
    """

    def open_store(self, directory: Path) -> KeyValueStore:
        """Open a store on ``directory``, which holds a clone of an image, or is not there yet."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        """Open an empty store."""
        self._root = Path(tempfile.mkdtemp(prefix="statekeep-store-"))
        self._opened = 0
        self._images = 0
        self._image: Path | None = None
        self._saved: dict[bytes, bytes] = {}
        self._model: dict[bytes, bytes] = {}
        self._reopen()

    @rule(key=_keys, value=_values)
    def put(self, key: bytes, value: bytes) -> None:
        """Set one key."""
        self._store.put(key, value)
        self._model[key] = value

    @rule(key=_keys)
    def delete(self, key: bytes) -> None:
        """Remove one key."""
        self._store.delete(key)
        self._model.pop(key, None)

    @rule(changes=st.dictionaries(_keys, st.none() | _values, max_size=20))
    def write(self, changes: dict[bytes, bytes | None]) -> None:
        """Put and delete many keys."""
        self._store.write(changes)
        for key, value in changes.items():
            if value is None:
                self._model.pop(key, None)
            else:
                self._model[key] = value

    @rule(keys=st.lists(_keys, max_size=10))
    def get_many(self, keys: list[bytes]) -> None:
        """Read keys both ways."""
        expected = [self._model.get(key) for key in keys]
        assert self._store.get_many(keys) == expected
        assert [self._store.get(key) for key in keys] == expected

    @rule(prefix=st.binary(max_size=2))
    def scan(self, prefix: bytes) -> None:
        """Read the keys of a prefix."""
        expected = sorted(item for item in self._model.items() if item[0].startswith(prefix))
        assert list(self._store.scan(prefix)) == expected

    @rule()
    def checkpoint(self) -> None:
        """Write an image."""
        self._images += 1
        self._image = self._root / f"image-{self._images}"
        self._store.checkpoint(self._image)
        self._saved = dict(self._model)

    @rule()
    def crash(self) -> None:
        """Lose what came after the last image."""
        self._store.close()
        self._model = dict(self._saved)
        self._reopen()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        """Compare the whole content."""
        if hasattr(self, "_store"):
            assert dict(self._store.scan()) == self._model

    @override
    def teardown(self) -> None:
        if hasattr(self, "_store"):
            self._store.close()
            shutil.rmtree(self._root)

    def _reopen(self) -> None:
        self._opened += 1
        directory = self._root / f"work-{self._opened}"
        if self._image is not None:
            clone_image(self._image, directory)
        self._store = self.open_store(directory)


def bytes_below(directory: Path) -> Mapping[str, bytes]:
    """Return the content of every file below ``directory``, by relative path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
