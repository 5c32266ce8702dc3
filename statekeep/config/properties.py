"""Reads Java ``.properties`` text: what a job that comes from Samza has as its configuration.

Source: the format that ``java.util.Properties.load`` documents, in UTF-8.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_BLANKS: Final = " \t\f"
_TRAILING_BACKSLASHES: Final = re.compile(r"\\*\Z")
_KEY: Final = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(u)|(.)|\Z)", re.DOTALL)
_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One entry of a file."""

    key: str
    value: str
    line: int
    """Where it begins, from 1."""


def parse_properties(text: str) -> Iterator[Property]:
    r"""Yield the entries in their order; a key that stands there twice is yielded twice.

    Raises:
        ValueError: A ``\u`` escape is not four hex digits, or half a surrogate pair; the text
            names the line and does not quote it.
    """
    for line, content in _logical_lines(text):
        end_of_key = _KEY.match(content)
        split = 0 if end_of_key is None else end_of_key.end()
        separator = _SEPARATOR.match(content, split)
        start = split if separator is None else separator.end()
        try:
            yield Property(_unescape(content[:split]), _unescape(content[start:]), line)
        except ValueError as exc:
            raise ValueError(f"malformed \\u escape: line={line}") from exc


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each entry's line number and text; comments gone, continued lines joined."""
    pending, begin = "", 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_BLANKS)
        if not begin:
            if not line or line[0] in "#!":
                continue
            begin = number
        pending += line
        if _is_continued(line):
            pending = pending[:-1]
            continue
        yield begin, pending
        pending, begin = "", 0
    if begin:
        yield begin, pending


def _is_continued(line: str) -> bool:
    backslashes = _TRAILING_BACKSLASHES.search(line)
    return backslashes is not None and len(backslashes[0]) % 2 == 1


def _unescape(text: str) -> str:
    units = _ESCAPE.sub(_unit, text)
    # Java writes a character outside the basic plane as two escapes, a surrogate pair.
    return units.encode("utf-16", "surrogatepass").decode("utf-16")


def _unit(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    if match[2] is not None:
        raise ValueError("not four hex digits")
    character = match[3] or ""
    return _CONTROL.get(character, character)
