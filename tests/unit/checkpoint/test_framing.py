import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from newer_frames import of_next_format

from statekeep.checkpoint.framing import Frame, claimed_kind, frame, unframe
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

FRAMED = frame("batch", b'{"batch":7}')
NEWER = of_next_format(FRAMED)


def test_frame_is_text_that_a_person_can_read() -> None:
    assert FRAMED == b'statekeep 1 batch 9d35fdd9 11\n{"batch":7}'


@settings(deadline=None)
@given(st.binary())
def test_every_payload_comes_back(payload: bytes) -> None:
    assert unframe(frame("epoch", payload), where="here") == Frame("epoch", payload)


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=len(FRAMED) - 1))
def test_every_truncation_is_seen(length: int) -> None:
    with pytest.raises(CheckpointCorruptError, match="here"):
        unframe(FRAMED[:length], where="here")


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=len(FRAMED) * 8 - 1))
def test_every_flipped_bit_is_seen(bit: int) -> None:
    damaged = bytearray(FRAMED)
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(CheckpointCorruptError, match="here"):
        unframe(bytes(damaged), where="here")


@settings(deadline=None)
@given(st.binary())
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointCorruptError):
        unframe(data, where="here")


def test_newer_format_is_named_and_not_guessed_at() -> None:
    with pytest.raises(UnknownFormatError, match="here version=2"):
        unframe(NEWER, where="here")
    assert claimed_kind(NEWER) is None


@pytest.mark.parametrize(
    "damaged",
    [
        NEWER[:-1],
        NEWER.replace(b"7", b"8"),
        NEWER.replace(b" 2 ", b" 3 ", 1),
        FRAMED.replace(b" 1 ", b" 0 ", 1),
    ],
    ids=["truncated", "changed", "another version", "a version that never was"],
)
def test_a_newer_format_that_is_not_whole_is_damage(damaged: bytes) -> None:
    with pytest.raises(CheckpointCorruptError, match="here"):
        unframe(damaged, where="here")


def test_damaged_frame_still_says_what_it_was() -> None:
    assert claimed_kind(FRAMED[:-3]) == "batch"
    assert claimed_kind(b"") is None
