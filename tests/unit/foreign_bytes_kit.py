"""Bytes as another program might have left them: valid ones that were changed, and nonsense."""

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from hypothesis import strategies as st

_HUGE: Final = (2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64, 10**400, -1, -(2**63))
_WORDS: Final = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_TEXTS: Final = (
    "",
    " ",
    "../../etc/passwd",
    "/etc/passwd",
    "a/../b",
    "x" * 300,
    "x/" * 600,
    "\0",
    "\ud7ff\uffff",
    "9" * 5000,
    "-1",
    "1e400",
)


def foreign_bytes(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Give random bytes, and the samples with one to three changes."""
    return st.binary(max_size=200) | _changed(samples)


def nested(depth: int, around: bytes = b"", opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Return brackets within brackets."""
    return opening * depth + around + closing * depth


@st.composite
def _changed(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    data = draw(st.sampled_from(list(samples)))
    for _ in range(draw(st.integers(1, 3))):
        data = draw(st.sampled_from(_CHANGES))(draw, data)
    return data


def _place(draw: st.DrawFn, data: bytes) -> int:
    return draw(st.integers(0, len(data)))


def _flip_bits(draw: st.DrawFn, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(draw(st.integers(1, 4))):
        changed[draw(st.integers(0, len(changed) - 1))] ^= draw(st.integers(1, 255))
    return bytes(changed)


def _truncate(draw: st.DrawFn, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def _insert(draw: st.DrawFn, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + draw(st.binary(min_size=1, max_size=20)) + data[at:]


def _duplicate(draw: st.DrawFn, data: bytes) -> bytes:
    start, end = sorted((_place(draw, data), _place(draw, data)))
    return data[:end] + data[start:end] + data[end:]


def _exchange(draw: st.DrawFn, data: bytes) -> bytes:
    first, second, third, fourth = sorted(_place(draw, data) for _ in range(4))
    return (
        data[:first] + data[third:fourth] + data[second:third] + data[first:second] + data[fourth:]
    )


def _set_word(draw: st.DrawFn, data: bytes) -> bytes:
    """Put a large or small number in the place of four bytes."""
    at = _place(draw, data)
    form = draw(st.sampled_from((">I", "<I")))
    return data[:at] + struct.pack(form, draw(st.sampled_from(_WORDS))) + data[at + 4 :]


def _change_json(draw: st.DrawFn, data: bytes) -> bytes:
    """Put another value somewhere into a JSON document; other data get a flipped bit."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _flip_bits(draw, data)
    holders = list(_holders(document))
    if not holders:
        return nested(draw(st.sampled_from((3, 5000))))
    holder, key = draw(st.sampled_from(holders))
    other, other_key = draw(st.sampled_from(holders))
    new: Any = draw(
        st.sampled_from((*_HUGE, *_TEXTS, None, True, [], {}, 1.5, holder, other[other_key]))
    )
    is_removed = isinstance(holder, dict) and draw(st.integers(0, 5)) == 0
    if is_removed:
        del holder[key]
    else:
        holder[key] = json.loads(json.dumps(new)) if new is not holder else [[holder[key]]]
    depth = draw(st.sampled_from((0, 0, 0, 50, 300, 2000)))
    text = json.dumps(document)
    if depth:
        at = draw(st.sampled_from([i for i, char in enumerate(text) if char in "[{"] or [0]))
        text = f"{text[:at]}{'[' * depth}{text[at:]}{']' * depth}"
    return text.encode()


def _holders(document: Any) -> Sequence[tuple[Any, Any]]:
    """Return every (dict, key) and (list, index) of a document."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found += [(each, key) for key in each]
            waiting += each.values()
        elif isinstance(each, list):
            found += [(each, index) for index in range(len(each))]
            waiting += each
    return found


_CHANGES: Final[Sequence[Callable[[st.DrawFn, bytes], bytes]]] = (
    _flip_bits,
    _truncate,
    _insert,
    _duplicate,
    _exchange,
    _set_word,
    _change_json,
    _change_json,
)
