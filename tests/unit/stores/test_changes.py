"""CapturingStore: what is written is also in the delta, and a lost write is never passed over."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import StateBackupError
from statekeep.stores.change_set import CapturingStore
from statekeep.stores.delta import Change, DeltaCounts, DeltaHeader, DeltaReader
from statekeep.stores.memory import MemoryStore

NAME = StoreName("state")
HEADER = DeltaHeader(version="1_0000000a", store="state")


class StoreOfLittleRoom(MemoryStore):
    """Writes one key of two and then fails, once."""

    has_failed = False

    @override
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if len(changes) > 1 and not self.has_failed:
            self.has_failed = True
            super().write(dict(list(changes.items())[:1]))
            raise StateBackupError("no room")
        super().write(changes)


@pytest.fixture
def store(tmp_path: Path) -> CapturingStore:
    return CapturingStore(MemoryStore(NAME, tmp_path / "db", is_new=True), tmp_path / "changes")


def changes_in(path: Path) -> list[Change]:
    with path.open("rb") as file:
        reader = DeltaReader(file, where=f"path={path}")
        assert reader.header == HEADER
        return list(reader)


def test_every_write_is_forwarded_and_captured_in_order(
    store: CapturingStore, tmp_path: Path
) -> None:
    store.put(b"a", b"1")
    store.write({b"b": b"2", b"a": None})
    store.delete(b"x")
    assert list(store.scan()) == [(b"b", b"2")]
    assert store.get_many([b"a", b"b"]) == [None, store.get(b"b")]
    counts = store.cut(HEADER, tmp_path / "d")
    assert counts == DeltaCounts(puts=2, deletes=2)
    assert changes_in(tmp_path / "d") == [(b"a", b"1"), (b"b", b"2"), (b"a", None), (b"x", None)]
    store.close()


def test_a_cut_begins_the_next_delta(store: CapturingStore, tmp_path: Path) -> None:
    store.put(b"a", b"1")
    store.cut(HEADER, tmp_path / "first")
    store.put(b"b", b"2")
    store.cut(HEADER, tmp_path / "second")
    assert changes_in(tmp_path / "second") == [(b"b", b"2")]
    store.close()


def test_a_cut_without_writes_gives_an_empty_delta(store: CapturingStore, tmp_path: Path) -> None:
    store.cut(HEADER, tmp_path / "d")
    assert changes_in(tmp_path / "d") == []
    store.close()


def test_a_write_that_failed_in_the_middle_is_not_passed_over(tmp_path: Path) -> None:
    store = CapturingStore(
        StoreOfLittleRoom(NAME, tmp_path / "db", is_new=True), tmp_path / "changes"
    )
    with pytest.raises(StateBackupError, match="no room"):
        store.write({b"a": b"1", b"b": b"2"})
    for call in (lambda: store.put(b"c", b"3"), lambda: store.cut(HEADER, tmp_path / "d")):
        with pytest.raises(StateBackupError, match="its changes are lost: store=state"):
            call()
    assert not (tmp_path / "d").exists()
    store.close()
