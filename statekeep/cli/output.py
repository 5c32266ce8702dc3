"""What the commands print: tables and lines for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

NOTHING: Final = "-"


def print_json(value: JsonValue) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(f"{json.dumps(value, indent=2)}\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table to stdout; numbers stand to the right. Text is taken as it is."""
    kept = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        is_number = bool(kept) and all(isinstance(row[index], int | float) for row in kept)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in kept:
        table.add_row(*(escape(_text(cell)) for cell in row))
    console().print(table)


def print_line(text: str) -> None:
    """Write one line to stdout, as it is."""
    console().print(escape(text), soft_wrap=True)


def console() -> Console:
    """Return the console of stdout; a pipe is wide, so that programs find whole lines there."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=1000)


def utc(millis: int) -> str:
    """Return milliseconds since the epoch as people and programs read them."""
    moment = datetime.fromtimestamp(millis / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def joined(value: JsonValue) -> str:
    """Return a list as one cell of a table, anything else as text."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _text(cell: object) -> str:
    return NOTHING if cell is None or cell == "" else str(cell)
