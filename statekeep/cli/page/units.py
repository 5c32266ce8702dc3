"""Numbers as people read them."""

from typing import Final

from rich import filesize

from statekeep.cli.output import utc

NOT_RECORDED: Final = "not recorded"

_SECOND_MS: Final = 1000
_UNITS: Final = (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
"""Each with its seconds, and the next smaller one."""


def duration(ms: float | None) -> str:
    """Return milliseconds as ``4.6 ms``, ``1.2 s``, ``3 min 5 s``, ``2 h 10 min`` or ``3 d 4 h``."""
    if ms is None:
        return NOT_RECORDED
    if round(ms) < _SECOND_MS:
        return f"{ms:.3g} ms"
    seconds = round(ms / _SECOND_MS)
    for unit, length, part, part_length in _UNITS:
        if seconds >= length:
            rest = seconds % length // part_length
            return f"{seconds // length} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{ms / _SECOND_MS:.3g} s"


def size(count: float | None) -> str:
    """Return bytes with their unit."""
    return NOT_RECORDED if count is None else filesize.decimal(int(count))


def number(count: float | None) -> str:
    """Return a count."""
    if count is None:
        return NOT_RECORDED
    return f"{count:,.0f}" if count == int(count) else f"{count:,.2f}"


def moment(ms: int | None) -> str:
    """Return a time in UTC."""
    return NOT_RECORDED if ms is None else utc(ms).replace("T", " ")


def ago(ms: int | None, now_ms: int) -> str:
    """Return how long ago something was."""
    return NOT_RECORDED if ms is None else f"{duration(max(0, now_ms - ms))} ago"
