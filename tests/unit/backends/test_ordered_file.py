"""Parts that come in any order, from any thread, make the file."""

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from statekeep.backends.storage.transfers import OrderedFile
from statekeep.errors import ConfigError


def bring(file: OrderedFile, number: int, data: bytes) -> int:
    file.bring(number, data)
    return file.write()


@given(order=st.permutations(range(6)))
@settings(deadline=None)
def test_parts_are_written_and_hashed_in_their_order(order: Sequence[int]) -> None:
    parts = [bytes([number]) * number for number in range(6)]
    with TemporaryDirectory() as directory:
        target = Path(directory) / "target"
        file = OrderedFile(target)
        for count, number in enumerate(order, 1):
            written = bring(file, number, parts[number])
            brought = set(order[:count])
            assert written == next(n for n in range(7) if n not in brought)
        assert file.close()
        assert file.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()
        assert target.read_bytes() == b"".join(parts)


def test_many_threads_bring_a_file_and_each_part_is_reported_as_written(tmp_path: Path) -> None:
    parts = [bytes([number % 251]) * 5_000 for number in range(400)]
    file = OrderedFile(tmp_path / "target")
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(partial(bring, file), range(400), parts))
    assert max(written) == 400
    assert file.close()
    assert file.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()
    assert (tmp_path / "target").read_bytes() == b"".join(parts)


def test_what_is_written_or_comes_too_late_is_not_kept_in_memory(tmp_path: Path) -> None:
    file, held = OrderedFile(tmp_path / "target"), set[int]()

    class Held(bytes):
        def __init__(self, data: bytes) -> None:
            del data
            held.add(id(self))

        def __del__(self) -> None:
            held.remove(id(self))

    file.bring(1, Held(b"b"))
    file.bring(2, Held(b"c"))
    file.bring(0, Held(b"a"))
    assert len(held) == 3
    assert file.write() == 3
    assert held == set()
    file.bring(4, Held(b"e"))
    assert len(held) == 1
    assert file.close()
    assert held == set()
    file.bring(3, Held(b"d"))
    assert held == set()
    assert file.write() == 3
    assert (tmp_path / "target").read_bytes() == b"abc"
    assert file.sha256 == hashlib.sha256(b"abc").hexdigest()


class HeldUp(OrderedFile):
    """Writes when it may."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self.is_writing, self.may_write = threading.Event(), threading.Event()

    @override
    def _append(self, data: bytes) -> None:
        self.is_writing.set()
        assert self.may_write.wait(10)
        super()._append(data)


def test_closing_waits_for_the_part_that_is_being_written_and_for_no_other(tmp_path: Path) -> None:
    file = HeldUp(tmp_path / "target")
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(bring, file, 0, b"a")
        assert file.is_writing.wait(10)
        assert bring(file, 1, b"b") == 0  # left to the one who writes
        assert not file.close()
        closed = pool.submit(file.wait_closed)
        assert not closed.done()
        file.may_write.set()
        closed.result(10)
        assert writing.result(10) == 1
    assert (tmp_path / "target").read_bytes() == b"a"
    assert file.sha256 == hashlib.sha256(b"a").hexdigest()


def test_a_part_that_cannot_be_written_fails_the_file_for_all(tmp_path: Path) -> None:
    file = OrderedFile(tmp_path / "missing" / "target")
    with pytest.raises(ConfigError, match=r"path=.*target reason=No such file"):
        bring(file, 0, b"a")
    (tmp_path / "missing").mkdir()
    assert bring(file, 1, b"b") == 0
    file.close()
    assert not (tmp_path / "missing" / "target").exists()


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"theirs")
    with pytest.raises(ConfigError, match="File exists"):
        bring(OrderedFile(tmp_path / "target"), 0, b"ours")
    assert (tmp_path / "target").read_bytes() == b"theirs"
