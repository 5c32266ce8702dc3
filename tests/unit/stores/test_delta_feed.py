"""Deltas whose bytes come piece by piece."""

import io
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.errors import CheckpointCorruptError
from statekeep.stores.block_codec import codec_named
from statekeep.stores.delta import Change, DeltaHeader, DeltaWriter
from statekeep.stores.delta_feed import DeltaFeed

CHANGES = st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=99)), max_size=9)
CUTS = st.lists(st.integers(0, 400), max_size=12)
HEADER = DeltaHeader(version="1_00000000", store="s")


def written(blocks: Sequence[Sequence[Change]]) -> bytes:
    file = io.BytesIO()
    writer = DeltaWriter(file, HEADER, codec=codec_named("lz4"))
    for block in blocks:
        writer.write_entries(block)
        writer._write_block()
    writer.finish()
    return file.getvalue()


def read(data: bytes, cuts: Sequence[int] = ()) -> list[Change]:
    feed = DeltaFeed(where="here")
    found: list[Change] = []
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(bounds):
        for records in feed.feed(data[start:end]):
            found += records
    assert feed.finish().header == HEADER
    return found


@settings(deadline=None)
@given(blocks=st.lists(CHANGES, max_size=4), cuts=CUTS)
def test_however_a_delta_is_cut_its_records_are_read(
    blocks: list[list[Change]], cuts: list[int]
) -> None:
    assert read(written(blocks), cuts) == [change for block in blocks for change in block]


def test_a_block_is_given_out_as_soon_as_it_is_whole() -> None:
    data = written([[(b"a", b"1")], [(b"b", b"2")]])
    ends = [len(written([[(b"a", b"1")]])) - 24, len(data) - 24]
    feed, seen = DeltaFeed(where="here"), list[int]()
    for at in range(len(data)):
        seen += [at + 1 for _ in feed.feed(data[at : at + 1])]
    feed.finish()
    # 24 bytes of what follows show that it is no end.
    assert seen == [ends[0], ends[1]]


@settings(deadline=None)
@given(blocks=st.lists(CHANGES, max_size=3), data=st.data())
def test_a_delta_that_is_cut_off_is_refused(
    blocks: list[list[Change]], data: st.DataObject
) -> None:
    whole = written(blocks)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CheckpointCorruptError, match="here"):
        read(whole[:end], data.draw(CUTS))


@settings(deadline=None)
@given(blocks=st.lists(CHANGES, max_size=3), data=st.data())
def test_a_flipped_bit_is_found(blocks: list[list[Change]], data: st.DataObject) -> None:
    damaged = bytearray(written(blocks))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CheckpointCorruptError, match="here"):
        read(bytes(damaged), data.draw(CUTS))


def test_what_follows_the_end_is_refused_without_waiting_for_more_of_it() -> None:
    feed = DeltaFeed(where="here")
    with pytest.raises(CheckpointCorruptError, match="goes on after its end"):
        list(feed.feed(written([[(b"a", b"1")]]) + b"x"))


def test_no_more_than_a_piece_and_a_block_is_held() -> None:
    data = written([[(b"%d" % n, b"v" * 50)] for n in range(500)])
    feed = DeltaFeed(where="here")
    for start in range(0, len(data), 100):
        list(feed.feed(data[start : start + 100]))
        assert len(feed._waiting.getvalue()) < 300
    feed.finish()
