"""Encoded streams: what went in comes out, whatever was changed on the way is found."""

import json
import struct
import zlib
from pathlib import Path

import pytest
from encoded_kit import SECRET, read_stream
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.blob.encoded_stream import (
    FRAME_BYTES,
    Encoding,
    StreamDecoder,
    StreamEncoder,
)
from statekeep.backends.encryption_keys import EncryptionKey
from statekeep.errors import CheckpointCorruptError, KeyUnavailableError, UnknownFormatError

KEY = EncryptionKey("2026-11", SECRET)
ENCRYPTED = Encoding("none", KEY)
ENCODINGS = [Encoding("zstd"), ENCRYPTED, Encoding("zstd", KEY)]
NAMES = ["compressed", "encrypted", "both"]
PLACE = "flights/state-77aa/blob/main/Partition_3/state/3-5/0c1f-0-a.sst#0"
SALT = b"s" * 32
HEAD_BYTES = 9
GOLDEN = Path(__file__).parents[2] / "golden"


def encoded(*pieces: bytes, encoding: Encoding = ENCRYPTED, salt: bytes = SALT) -> list[bytes]:
    """Encode pieces; each comes out on its own."""
    encoder = StreamEncoder(encoding, PLACE, salt)
    last = len(pieces) - 1
    return [encoder.encode(raw, is_last=number == last) for number, raw in enumerate(pieces)]


def decoded(*stored: bytes, place: str = PLACE, key: EncryptionKey = KEY) -> bytes:
    decoder = StreamDecoder(place, lambda _: key, where="test")
    raw = b"".join(frame for piece in stored for frame in decoder.frames(piece))
    decoder.finish()
    return raw


def start_of(stream: bytes) -> int:
    """Return the length of what stands before the first frame."""
    return 16 + int.from_bytes(stream[12:16], "little") + 4


@pytest.mark.parametrize("encoding", ENCODINGS, ids=NAMES)
@pytest.mark.parametrize(
    "size", [0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 2 * FRAME_BYTES]
)
def test_what_is_encoded_is_decoded_at_every_size_around_a_frame(
    encoding: Encoding, size: int
) -> None:
    raw = bytes(range(251)) * (size // 251 + 1)
    (stream,) = encoded(raw[:size], encoding=encoding)
    assert decoded(stream) == raw[:size]


@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=4096), encoding=st.sampled_from(ENCODINGS))
def test_any_bytes_are_decoded_by_the_description_of_the_format_alone(
    raw: bytes, encoding: Encoding
) -> None:
    (stream,) = encoded(raw, encoding=encoding)
    assert read_stream(stream, PLACE) == raw


def test_a_stream_may_be_cut_between_frames_and_go_on_elsewhere() -> None:
    pieces = [bytes([n]) * 2 * FRAME_BYTES for n in range(3)] + [b"end"]
    assert decoded(*encoded(*pieces)) == b"".join(pieces)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_in_an_encrypted_stream_is_found(data: st.DataObject) -> None:
    (stream,) = encoded(b"some state " * 20, encoding=Encoding("zstd", KEY))
    at = data.draw(st.integers(0, len(stream) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = bytearray(stream)
    changed[at] ^= 1 << bit
    with pytest.raises(CheckpointCorruptError):
        decoded(bytes(changed))


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 2**16))
def test_a_stream_that_is_cut_off_anywhere_is_refused(cut: int) -> None:
    stream = b"".join(encoded(b"a" * FRAME_BYTES, b"b" * 100))
    with pytest.raises(CheckpointCorruptError):
        decoded(stream[: -1 - cut % len(stream)])


@pytest.mark.parametrize(
    "order",
    [(1, 0, 2), (0, 2), (0, 1), (0, 1, 1, 2), (0, 0, 1, 2), (0, 1, 2, 2), (1, 2)],
    ids=["swapped", "left out", "no end", "twice", "first twice", "last twice", "no beginning"],
)
def test_pieces_in_any_other_order_are_refused(order: tuple[int, ...]) -> None:
    pieces = encoded(b"a" * FRAME_BYTES, b"b" * FRAME_BYTES, b"c")
    assert decoded(*pieces)
    with pytest.raises(CheckpointCorruptError):
        decoded(*(pieces[number] for number in order))


def test_a_frame_of_another_stream_of_the_same_key_is_refused() -> None:
    ours = encoded(b"a" * FRAME_BYTES, b"b")
    theirs = encoded(b"a" * FRAME_BYTES, b"b", salt=b"t" * 32)
    with pytest.raises(CheckpointCorruptError, match="not what was encrypted here: frame=1"):
        decoded(ours[0], theirs[1])


def test_a_stream_at_another_place_is_refused() -> None:
    (stream,) = encoded(b"state of another blob")
    with pytest.raises(CheckpointCorruptError, match="not what was encrypted here"):
        decoded(stream, place=PLACE.replace("0-a.sst", "1-b.sst"))


@pytest.mark.parametrize("number", range(len(PLACE.split("/"))))
def test_a_stream_at_the_same_place_of_anything_else_is_refused(number: int) -> None:
    (stream,) = encoded(b"state of another job, backend, task, store or attempt")
    parts = PLACE.split("/")
    parts[number] = "7" + parts[number]
    with pytest.raises(CheckpointCorruptError, match="not what was encrypted here"):
        decoded(stream, place="/".join(parts))


def test_a_stream_that_is_not_encrypted_is_refused_where_it_should_be() -> None:
    (stream,) = encoded(b"state", encoding=Encoding("zstd"))
    decoder = StreamDecoder(PLACE, lambda _: KEY, where="test", is_encrypted=True)
    with pytest.raises(CheckpointCorruptError, match="it is not encrypted"):
        list(decoder.frames(stream))


def test_the_last_frame_cannot_be_moved_forward_by_its_mark() -> None:
    first, _ = encoded(b"a" * FRAME_BYTES, b"b")
    at = start_of(first) + HEAD_BYTES - 1
    with pytest.raises(CheckpointCorruptError, match="not what was encrypted here"):
        decoded(first[:at] + bytes([first[at] | 1]) + first[at + 1 :])


def test_another_key_of_the_same_id_is_distinguished_from_damage() -> None:
    (stream,) = encoded(b"state")
    with pytest.raises(KeyUnavailableError, match="another key has the id") as caught:
        decoded(stream, key=EncryptionKey(KEY.id, b"w" * 32))
    assert KEY.id in str(caught.value)


def test_equal_content_is_never_encrypted_equally() -> None:
    (one,) = encoded(b"state", salt=b"1" * 32)
    (two,) = encoded(b"state", salt=b"2" * 32)
    assert one[start_of(one) :] != two[start_of(two) :]


def test_what_does_not_shrink_is_not_compressed() -> None:
    raw = bytes(range(256))
    (stream,) = encoded(raw, encoding=Encoding("zstd"))
    assert stream.endswith(raw)


@pytest.mark.parametrize(
    ("version", "header", "told"),
    [
        (3, {"compression": "none"}, "version=3"),
        (3, {"something": "else"}, "version=3"),
        (1, {"compression": "zstd-2"}, "compression=zstd-2"),
        (1, {"compression": "none", "encryption": "aes-512"}, "encryption=aes-512"),
    ],
)
def test_a_whole_stream_of_an_unknown_format_is_distinguished_from_damage_and_named(
    version: int, header: dict[str, str], told: str
) -> None:
    text = json.dumps(header).encode()
    start = struct.pack("<8sII", b"SKSTREAM", version, len(text)) + text
    stream = start + struct.pack("<I", zlib.crc32(start)) + b"frames"
    with pytest.raises(UnknownFormatError, match=told):
        decoded(stream)


def test_a_version_that_is_damaged_is_damage() -> None:
    (stream,) = encoded(b"state")
    with pytest.raises(CheckpointCorruptError, match="differs from its checksum"):
        decoded(stream[:8] + b"\x01" + stream[9:])


def test_only_the_id_of_a_key_is_in_the_header() -> None:
    (stream,) = encoded(b"state")
    header = json.loads(stream[16 : start_of(stream) - 4])
    assert set(header) == {"compression", "encryption", "key-id", "key-check", "salt"}
    assert SECRET not in stream
    assert SECRET.hex() not in json.dumps(header)


def test_the_golden_sample_is_written_and_read_byte_for_byte() -> None:
    (stream,) = encoded(b"k=v\n" * 64, encoding=Encoding("zstd", KEY))
    golden = bytes.fromhex((GOLDEN / "encoded-stream-2.hex").read_text())
    assert decoded(golden) == read_stream(golden, PLACE) == b"k=v\n" * 64
    # How well zstd compresses may change with its version; everything before it may not.
    assert stream[: start_of(stream)] == golden[: start_of(golden)]


def test_what_was_bound_to_the_end_of_its_place_alone_is_still_decoded() -> None:
    golden = bytes.fromhex((GOLDEN / "encoded-stream.hex").read_text())
    assert decoded(golden) == read_stream(golden, PLACE) == b"k=v\n" * 64
    decoder = StreamDecoder(PLACE, lambda _: KEY, where="test")
    list(decoder.frames(golden))
    assert (decoder.version, decoder.is_encrypted) == (1, True)
