"""Parts that come in any order, from any thread, make the file; their buffers are used again."""

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

from statekeep.backends.blob.managers.ordered_file import OrderedFile
from statekeep.backends.blob.managers.part_buffers import PartBuffers
from statekeep.backends.pacing import ByteBudget
from statekeep.errors import ConfigError


def keep() -> None:
    """Release nothing."""


@given(order=st.permutations(range(6)))
@settings(deadline=None)
def test_parts_are_written_and_hashed_in_their_order(order: Sequence[int]) -> None:
    parts = [bytes([number]) * number for number in range(6)]
    released: list[int] = []
    with TemporaryDirectory() as directory:
        target = Path(directory) / "target"
        file = OrderedFile(target)
        for count, number in enumerate(order, 1):
            written = file.bring(number, parts[number], partial(released.append, number))
            brought = set(order[:count])
            assert written == next(n for n in range(7) if n not in brought)
            assert released == list(range(written))
        assert file.close()
        assert file.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()
        assert target.read_bytes() == b"".join(parts)


def test_many_threads_bring_a_file_and_each_part_is_told_as_written(tmp_path: Path) -> None:
    parts = [bytes([number % 251]) * 5_000 for number in range(400)]
    file = OrderedFile(tmp_path / "target")
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(partial(file.bring, release=keep), range(400), parts))
    assert max(written) == 400
    assert file.close()
    assert file.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()
    assert (tmp_path / "target").read_bytes() == b"".join(parts)


def test_a_closed_file_takes_nothing_more_and_releases_all(tmp_path: Path) -> None:
    file, released = OrderedFile(tmp_path / "target"), list[str]()
    file.bring(0, b"a", keep)
    file.bring(2, b"c", lambda: released.append("early"))
    assert file.close()
    assert file.bring(1, b"b", lambda: released.append("late")) == 1
    assert released == ["early", "late"]
    assert (tmp_path / "target").read_bytes() == b"a"
    assert file.sha256 == hashlib.sha256(b"a").hexdigest()


def test_closing_waits_for_the_part_that_is_being_written_and_for_no_other(tmp_path: Path) -> None:
    file = OrderedFile(tmp_path / "target")
    is_writing, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        is_writing.set()
        assert may_end.wait(10)

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(file.bring, 0, b"a", hold)
        assert is_writing.wait(10)
        assert file.bring(1, b"b", keep) == 1  # left to the one who writes
        assert not file.close()
        closed = pool.submit(file.wait_closed)
        assert not closed.done()
        may_end.set()
        closed.result(10)
        assert writing.result(10) == 1
    assert (tmp_path / "target").read_bytes() == b"a"
    assert file.sha256 == hashlib.sha256(b"a").hexdigest()


def test_a_part_that_cannot_be_written_fails_the_file_for_all(tmp_path: Path) -> None:
    file = OrderedFile(tmp_path / "missing" / "target")
    with pytest.raises(ConfigError, match=r"path=.*target reason=No such file"):
        file.bring(0, b"a", keep)
    (tmp_path / "missing").mkdir()
    assert file.bring(1, b"b", keep) == 0
    file.close()
    assert not (tmp_path / "missing" / "target").exists()


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"theirs")
    with pytest.raises(ConfigError, match="File exists"):
        OrderedFile(tmp_path / "target").bring(0, b"ours", keep)
    assert (tmp_path / "target").read_bytes() == b"theirs"


@pytest.mark.asyncio
async def test_a_buffer_is_used_again_and_there_are_never_more_than_holders() -> None:
    buffers = PartBuffers(ByteBudget(30), part_bytes=10)
    async with buffers.hold(10):
        async with buffers.hold(10):
            first, second = buffers.take(), buffers.take()
            buffers.give_back(first)
            assert buffers.take() is first
            buffers.give_back(first)
            buffers.give_back(second)
        assert len(buffers._idle) == 1
        kept = buffers.take()
        assert kept in (first, second)
    buffers.give_back(kept)  # late, by a request that nobody waits for any more
    assert buffers._idle == []
