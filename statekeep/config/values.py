"""The types of settings: how the text of a value becomes a typed value, and what is refused."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S", bound=str)

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_QUANTITY = re.compile(r"([+-]?[0-9]{1,18})\s*([A-Za-z]*)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")

_MS_OF_UNIT = MappingProxyType(
    {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
)
_BYTES_OF_UNIT = MappingProxyType(
    {
        "": 1,
        "b": 1,
        "kb": 1_000,
        "kib": 1 << 10,
        "mb": 1_000_000,
        "mib": 1 << 20,
        "gb": 1_000_000_000,
        "gib": 1 << 30,
    }
)


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T_co]):
    """How values of one kind are written."""

    name: str
    """What the documentation calls it."""
    requirement: str
    """Completes the sentence "<key> must be ..."."""
    parse: Callable[[str], T_co]
    """Turns stripped text into the value; ValueError, which never quotes the text, if it cannot."""
    write: Callable[[Any], str] = str
    """Turns a value into the text that ``parse`` takes, without units."""


def whole_number(minimum: int, maximum: int | None = None, *, what: str = "") -> ValueType[int]:
    """Return the type of whole numbers between two bounds, both included."""
    bounds = _bounds(minimum, maximum)
    noun = f" of {what}" if what else ""
    return ValueType(
        "whole number",
        f"a whole number{noun}{bounds}",
        lambda text: _within(_plain_number(text), minimum, maximum),
    )


def milliseconds(minimum: int | None = None) -> ValueType[int]:
    """Return the type of durations: a bare number is milliseconds."""
    return ValueType(
        "ms",
        f"a whole number of milliseconds, or a duration such as 60s{_bounds(minimum, None)}",
        lambda text: _within(_quantity(text, _MS_OF_UNIT), minimum, None),
    )


def byte_count(minimum: int, maximum: int | None = None) -> ValueType[int]:
    """Return the type of sizes: a bare number is bytes."""
    return ValueType(
        "bytes",
        f"a whole number of bytes, or a size such as 64MiB{_bounds(minimum, maximum)}",
        lambda text: _within(_quantity(text, _BYTES_OF_UNIT), minimum, maximum),
    )


def decimal(minimum: float, maximum: float) -> ValueType[float]:
    """Return the type of decimal numbers between two bounds, both included."""

    def parse(text: str) -> float:
        if _DECIMAL.fullmatch(text) is None or not minimum <= float(text) <= maximum:
            raise ValueError("not a decimal number within the bounds")
        return float(text)

    return ValueType(
        "number",
        f"a number from {minimum:g} to {maximum:g}",
        parse,
        write=lambda number: format(Decimal(str(number)), "f"),  # never with an exponent
    )


def one_of(*choices: S) -> ValueType[S]:
    """Return the type of a fixed choice; case counts."""
    spellings: dict[str, S] = {choice: choice for choice in choices}

    def parse(text: str) -> S:
        if text not in spellings:
            raise ValueError("not one of the choices")
        return spellings[text]

    return ValueType(" | ".join(choices), f"one of {', '.join(choices)}", parse)


def name_list() -> ValueType[tuple[str, ...]]:
    """Return the type of comma-separated names without duplicates; empty text is the empty list."""

    def parse(text: str) -> tuple[str, ...]:
        if not text:
            return ()
        names = tuple(part.strip() for part in text.split(","))
        if not all(_is_name(name) for name in names) or len(set(names)) < len(names):
            raise ValueError("not a list of different names")
        return names

    return ValueType("names", "a comma-separated list of different names", parse)


def labels() -> ValueType[Mapping[str, str]]:
    """Return the type of comma-separated ``name=value`` pairs, no name twice."""

    def parse(text: str) -> Mapping[str, str]:
        pairs = [part.partition("=") for part in text.split(",")]
        named = {name.strip(): value.strip() for name, _, value in pairs}
        if not all(name.strip() and equals for name, equals, _ in pairs) or len(named) < len(pairs):
            raise ValueError("not a list of pairs")
        return MappingProxyType(named)

    return ValueType(
        "labels",
        "a comma-separated list of name=value pairs, no name twice",
        parse,
        write=lambda named: ",".join(f"{name}={value}" for name, value in named.items()),
    )


def _parse_date(text: str) -> date:
    if _DATE.fullmatch(text) is None:
        raise ValueError("not a date")
    return date.fromisoformat(text)


def _parse_boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("neither true nor false")
    return text.lower() == "true"


def _parse_name(text: str) -> str:
    if not _is_name(text) or "/" in text or text in {".", ".."}:
        raise ValueError("not a name")
    return text


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


def _parse_path(text: str) -> Path:
    if not text or _UNPRINTABLE.search(text) is not None:
        raise ValueError("not a path")
    return Path(text).expanduser()


def _is_name(text: str) -> bool:
    return bool(text) and _UNPRINTABLE.search(text) is None


def _plain_number(text: str) -> int:
    if _WHOLE_NUMBER.fullmatch(text) is None:
        raise ValueError("not a whole number")
    return int(text)


def _quantity(text: str, units: Mapping[str, int]) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ValueError("not a number with a known unit")
    return int(match[1]) * units[match[2].lower()]


def _within(number: int, minimum: int | None, maximum: int | None) -> int:
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        raise ValueError("out of bounds")
    return number


def _bounds(minimum: int | None, maximum: int | None) -> str:
    if minimum is None:
        return ""
    return f", at least {minimum}" if maximum is None else f" from {minimum} to {maximum}"


BOOLEAN = ValueType("true | false", "true or false", _parse_boolean)
DATE = ValueType("date", "a date such as 2026-12-31", _parse_date)
NAME = ValueType("name", "a name without '/' and control characters", _parse_name)
TEXT = ValueType("text", "some text", _parse_text)
ANY_TEXT: ValueType[str] = ValueType("text", "text", str)
PATH = ValueType("path", "the path of a local directory", _parse_path)
BlobCompression = Literal["none", "zstd"]
BlobEncryption = Literal["none", "aes-256-gcm"]
BLOB_COMPRESSIONS: ValueType[BlobCompression] = one_of("none", "zstd")
BLOB_ENCRYPTIONS: ValueType[BlobEncryption] = one_of("none", "aes-256-gcm")
