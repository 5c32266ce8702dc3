"""The delta format: round trips, and every damage is found or harmless."""

import io
import struct
from typing import BinaryIO
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from statekeep.errors import CheckpointCorruptError, UnknownFormatError
from statekeep.stores import delta
from statekeep.stores.block_codec import NoCodec
from statekeep.stores.delta import Change, DeltaCounts, DeltaHeader, DeltaReader, DeltaWriter

HEADER = DeltaHeader(version="7_00000000000000aa", parent="6_00000000000000bb", store="state")

changes_lists = st.lists(
    st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=40)), max_size=30
)
texts = st.text(max_size=20)
headers = st.builds(
    DeltaHeader,
    version=texts,
    parent=texts,
    lineage=st.lists(texts, max_size=3).map(tuple),
    store=texts,
    attributes=st.dictionaries(texts, texts, max_size=3),
)


def written(changes: list[Change], header: DeltaHeader = HEADER) -> bytes:
    target = io.BytesIO()
    writer = DeltaWriter(target, header)
    writer.write_entries(changes)
    writer.finish()
    return target.getvalue()


def read(data: bytes) -> list[Change]:
    return list(DeltaReader(io.BytesIO(data), where="path=x"))


def many_blocks() -> bytes:
    """Four blocks, one record each."""
    return written([(b"k%d" % number, bytes([number]) * 300_000) for number in range(4)])


@settings(deadline=None)
@given(changes=changes_lists, header=headers)
def test_what_is_written_is_read_back(changes: list[Change], header: DeltaHeader) -> None:
    reader = DeltaReader(io.BytesIO(written(changes, header)), where="path=x")
    assert reader.header == header
    assert list(reader) == changes
    deletes = sum(value is None for _, value in changes)
    assert reader.counts == DeltaCounts(len(changes) - deletes, deletes)


@settings(deadline=None)
@given(changes=changes_lists)
def test_a_header_that_is_given_last_is_read_first(changes: list[Change]) -> None:
    target = io.BytesIO(b"before")
    target.seek(6)
    writer = DeltaWriter(target)
    writer.write_entries(changes)
    writer.finish(HEADER)
    target.seek(6)
    reader = DeltaReader(target, where="path=x")
    assert reader.header == HEADER
    assert list(reader) == changes


def test_large_content_is_cut_into_blocks() -> None:
    changes: list[Change] = [(b"%06d" % number, b"v" * 100) for number in range(10_000)]
    blocks = list(DeltaReader(io.BytesIO(written(changes)), where="path=x").blocks())
    assert len(blocks) == 5
    assert [change for block in blocks for change in block] == changes


def test_a_record_larger_than_a_block_is_kept_whole() -> None:
    changes: list[Change] = [(b"a", b"x" * 1_000_000), (b"b", None)]
    assert read(written(changes)) == changes


@settings(deadline=None)
@given(changes=changes_lists, data=st.data())
def test_a_flipped_bit_is_always_found(changes: list[Change], data: st.DataObject) -> None:
    whole = bytearray(written(changes))
    position = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[position // 8] ^= 1 << position % 8
    with pytest.raises(CheckpointCorruptError):
        read(bytes(whole))


@settings(deadline=None)
@given(changes=changes_lists, data=st.data())
def test_a_truncated_delta_is_refused(changes: list[Change], data: st.DataObject) -> None:
    whole = written(changes)
    with pytest.raises(CheckpointCorruptError):
        read(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_a_delta_that_goes_on_after_its_end_is_refused() -> None:
    with pytest.raises(CheckpointCorruptError, match="goes on after its end: path=x"):
        read(written([(b"a", b"1")]) + b"x")


def test_blocks_that_changed_places_are_found() -> None:
    data = many_blocks()
    size = 17 + 8 + 2 + 300_000
    start = len(data) - 24 - 4 * size
    blocks = [data[start + number * size : start + (number + 1) * size] for number in range(4)]
    assert b"".join([data[:start], *blocks, data[-24:]]) == data
    for order in ([1, 0, 2, 3], [0, 1, 2], [0, 0, 1, 2, 3]):
        changed = b"".join([data[:start], *(blocks[number] for number in order), data[-24:]])
        with pytest.raises(CheckpointCorruptError):
            read(changed)


def test_the_end_of_another_delta_is_found() -> None:
    ours, theirs = written([(b"a", b"1")]), written([(b"a", b"1")], DeltaHeader(version="other"))
    with pytest.raises(CheckpointCorruptError, match="end of a delta is damaged"):
        read(ours[:-24] + theirs[-24:])


def test_a_damaged_block_yields_none_of_its_records() -> None:
    data = bytearray(many_blocks())
    data[-24 - 1] ^= 1
    records = iter(DeltaReader(io.BytesIO(bytes(data)), where="path=x"))
    assert [next(records)[0] for _ in range(3)] == [b"k0", b"k1", b"k2"]
    with pytest.raises(CheckpointCorruptError, match="block is damaged"):
        next(records)


def test_a_newer_format_is_refused_by_its_number_and_is_no_damage() -> None:
    with patch.object(delta, "FORMAT_VERSION", 2):
        data = written([])
    with pytest.raises(UnknownFormatError, match="delta of an unknown format: version=2 path=x"):
        read(data)


def test_a_damaged_version_number_is_no_newer_format() -> None:
    data = bytearray(written([]))
    struct.pack_into("<I", data, 8, 2)
    with pytest.raises(CheckpointCorruptError, match="header of a delta is damaged"):
        read(bytes(data))


def test_a_block_of_a_codec_to_come_is_no_damage() -> None:
    class Later(NoCodec):
        number = 7

    target = io.BytesIO()
    writer = DeltaWriter(target, HEADER, codec=Later())
    writer.write({b"a": b"1"})
    writer.finish()
    with pytest.raises(UnknownFormatError, match="block of an unknown codec: codec=7 path=x"):
        read(target.getvalue())


def test_a_file_of_another_kind_is_no_delta() -> None:
    with pytest.raises(CheckpointCorruptError, match="not a delta"):
        read(b"x" * 100)


def test_a_delta_without_an_end_is_refused() -> None:
    target = io.BytesIO()
    DeltaWriter(target, HEADER).write({b"a": b"1"})
    with pytest.raises(CheckpointCorruptError, match="truncated"):
        read(target.getvalue())


def test_a_delta_is_read_from_a_stream_that_gives_a_byte_at_a_time() -> None:
    class Dripping(io.BytesIO):
        @override
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 1))

    source: BinaryIO = Dripping(written([(b"a", b"1"), (b"b", None)]))
    assert list(DeltaReader(source, where="path=x")) == [(b"a", b"1"), (b"b", None)]


def test_the_writer_holds_no_more_than_a_block() -> None:
    class Counting(io.BytesIO):
        largest = 0

        @override
        def write(self, data: bytes, /) -> int:  # type: ignore[override]  # bytes are all it gets here
            self.largest = max(self.largest, len(data))
            return super().write(data)

    target = Counting()
    writer = DeltaWriter(target, HEADER)
    for number in range(50_000):
        writer.write({b"%06d" % number: b"v" * 100})
    writer.finish()
    assert target.largest < delta._BLOCK_BYTES + 200


@settings(deadline=None)
@given(
    changes=st.dictionaries(
        st.binary(max_size=20), st.none() | st.binary(max_size=200), max_size=60
    ),
    block_bytes=st.integers(1, 400),
    chunk=st.integers(1, 20),
)
@example(  # a record that fills a block, written with others of its kind, and one beside a deletion
    changes={b"": None, b"1": None, b"22": None, b"4444": b"v" * 11, b"3": b"v" * 15},
    block_bytes=23,
    chunk=1,
)
def test_blocks_keep_their_bound_and_every_record_whatever_the_sizes(
    changes: dict[bytes, bytes | None], block_bytes: int, chunk: int
) -> None:
    target = io.BytesIO()
    with patch.multiple(delta, _BLOCK_BYTES=block_bytes, _CHUNK=chunk):
        writer = DeltaWriter(target, HEADER)
        writer.write(changes)
        writer.finish()
    target.seek(0)
    blocks = list(DeltaReader(target, where="path=x").blocks())
    assert [record for block in blocks for record in block] == list(changes.items())
    for block in blocks:
        sizes = [8 + len(key) + len(value or b"") for key, value in block]
        assert sum(sizes) - max(sizes) < block_bytes


@pytest.mark.parametrize("sizes", [(8, 8, 8), (8, 9, 8), (8, 0, 8), (0, 0, 0), (7, 8, 9)])
def test_records_of_equal_and_of_other_sizes_are_read_alike(sizes: tuple[int, ...]) -> None:
    changes: list[Change] = [(bytes([n] * 3), b"v" * size) for n, size in enumerate(sizes)]
    assert read(written(changes)) == changes


def test_a_block_whose_lengths_only_add_up_to_equal_records_is_read_as_it_is() -> None:
    changes: list[Change] = [(b"abcd", b"1234"), (b"abcdef", b"12"), (b"ab", b"123456")]
    assert read(written(changes)) == changes


def test_a_header_is_given_exactly_once() -> None:
    with pytest.raises(ValueError, match="given once"):
        DeltaWriter(io.BytesIO(), HEADER).finish(HEADER)
    with pytest.raises(ValueError, match="given once"):
        DeltaWriter(io.BytesIO()).finish()


def test_a_header_that_does_not_fit_its_room_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        DeltaWriter(io.BytesIO()).finish(DeltaHeader(attributes={"x": "y" * 600}))


def test_the_bytes_are_those_of_the_documented_format() -> None:
    parts = (
        "534b44454c54410a 01000000 18000000",  # magic, format version, bytes of the header
        b'{"version":"1_00000000"}'.hex(),
        "b0e918a2",  # CRC of all before
        "13000000 13000000 00 ae5b0a52 17852321",  # stored, raw, codec, CRC of it, CRC of these
        "01000000 6b 01000000 76",  # k: v
        "01000000 64 ffffffff",  # d is deleted
        "ffffffff 0100000000000000 0100000000000000 a5b86a5c",  # end: a put, a delete, CRC
    )
    golden = bytes.fromhex("".join(parts))
    assert written([(b"k", b"v"), (b"d", None)], DeltaHeader(version="1_00000000")) == golden
