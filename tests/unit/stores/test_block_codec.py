"""Compressed blocks: what goes in comes out, and damage is told."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.errors import CheckpointCorruptError
from statekeep.stores.block_codec import codec_named, codec_numbered
from statekeep.stores.delta import DeltaHeader, DeltaReader, DeltaWriter

ENTRIES = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=400)))


def written(entries: list[tuple[bytes, bytes | None]], name: str) -> bytes:
    file = io.BytesIO()
    writer = DeltaWriter(file, DeltaHeader(store="s"), codec=codec_named(name))
    writer.write_entries(entries)
    writer.finish()
    return file.getvalue()


@pytest.mark.parametrize("name", ["none", "lz4", "zstd"])
@settings(deadline=None)
@given(entries=ENTRIES)
def test_records_survive_every_codec(name: str, entries: list[tuple[bytes, bytes | None]]) -> None:
    assert list(DeltaReader(io.BytesIO(written(entries, name)), where="w")) == entries


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_codec_makes_what_repeats_itself_smaller(name: str) -> None:
    entries: list[tuple[bytes, bytes | None]] = [(b"%06d" % n, b"v" * 100) for n in range(2000)]
    assert len(written(entries, name)) < len(written(entries, "none")) / 4


@pytest.mark.parametrize("name", ["none", "lz4", "zstd"])
def test_a_block_of_another_size_than_it_says_is_refused(name: str) -> None:
    codec = codec_named(name)
    stored = codec.compress(b"content" * 10)
    for wrong in (0, 69, 71):
        with pytest.raises(ValueError, match="block is"):
            codec.decompress(stored, wrong)


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_bytes_that_are_no_block_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="block is"):
        codec_named(name).decompress(b"\xff\xfe\xfd", 70)


def test_a_codec_that_is_not_known_is_named() -> None:
    assert codec_numbered(200) is None
    data = bytearray(written([(b"k", b"v")], "none"))
    header_end = 20 + int.from_bytes(data[12:16], "little")
    data[header_end + 8] = 200
    with pytest.raises(CheckpointCorruptError):
        list(DeltaReader(io.BytesIO(bytes(data)), where="w"))
