"""What the commands print: tables and lines for people, JSON for programs."""

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich import filesize
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from statekeep.checkpoint.event_log import LATEST_MS

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

NOTHING: Final = "-"
WIDTH: Final = 100
"""How many characters a table may have in a line, unless everything is asked for."""

_LEAST_CELL: Final = 8


def print_json(value: JsonValue) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(f"{json.dumps(value, indent=2)}\n")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    if_empty: str = "nothing found",
    prose: Collection[str] = (),
    is_grouped: bool = False,
    is_full: bool = False,
) -> None:
    """Write a table to stdout; numbers stand to the right. Text is taken as it is.

    Args:
        columns: The heads.
        rows: A cell for each column; a `Text` has a style of its own.
        if_empty: What is written where there is no row.
        prose: Columns that are broken into lines where the table is too wide; long cells of the
            others lose their middle.
        is_grouped: Whether a first cell that equals the one above it is left out.
        is_full: Show every cell whole.
    """
    kept = [list(row) for row in rows]
    if not kept:
        print_line(if_empty)
        return
    table = table_of(columns, kept, prose=prose, is_grouped=is_grouped, is_full=is_full)
    console().print(table)


def table_of(
    columns: Sequence[str],
    kept: Sequence[Sequence[object]],
    *,
    prose: Collection[str] = (),
    is_grouped: bool = False,
    is_full: bool = False,
) -> Table:
    """Return a table as `print_table` writes it; there is at least one row."""
    numbers = {
        i for i in range(len(columns)) if all(isinstance(row[i], int | float) for row in kept)
    }
    cells = [[_text(cell) for cell in row] for row in kept]
    natural = [
        max(len(column), *(row[i].cell_len for row in cells)) for i, column in enumerate(columns)
    ]
    widths = natural if is_full else _fitted(natural, [len(column) for column in columns])
    if is_grouped:
        _leave_out_repeated(cells)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if i in numbers else "left",
            overflow="fold",
            max_width=widths[i],
        )
    for row in cells:
        table.add_row(
            *(
                cell if column in prose else _shortened(cell, width)
                for column, cell, width in zip(columns, row, widths, strict=True)
            )
        )
    return table


def print_total(sizes: Iterable[object], what: str) -> None:
    """Write what the sizes of a table come to; nothing for a table of one row or none."""
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) > 1:
        print_line(f"total: {size_of(sum(known))} in {len(known)} {what}")


def size_of(value: object) -> str:
    """Return a number of bytes with its unit."""
    return filesize.decimal(value) if isinstance(value, int) else NOTHING


def state_of(error: object, *, is_damaged: bool = True) -> Text:
    """Return the cell of a state: ``fine`` in green, an error in red, or yellow if nothing is lost."""
    if not error:
        return Text("fine", style="green")
    return Text(str(error), style="red" if is_damaged else "yellow")


def print_line(text: str) -> None:
    """Write one line to stdout, as it is."""
    console().print(escape(text), soft_wrap=True)


class PlainConsole(Console):
    """A console on which texts of records and services do not steer the terminal."""

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))


def console() -> Console:
    """Return the console of stdout; a pipe is wide, so that programs find whole lines there."""
    plain = PlainConsole(highlight=False)
    return plain if plain.is_terminal else PlainConsole(highlight=False, width=1000)


_HARMLESS: Final = {
    **dict.fromkeys(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"),
    **dict.fromkeys(range(0xD800, 0xE000), "�"),
}


def harmless(text: str) -> str:
    """Return a text without control characters, and with a sign for surrogates, which have no UTF-8."""
    return text.translate(_HARMLESS)


def utc(millis: int) -> str:
    """Return milliseconds since the epoch as people and programs read them; as they are if no year has them."""
    if not 0 <= millis <= LATEST_MS:
        return f"{millis} ms"
    moment = datetime.fromtimestamp(millis / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def joined(value: JsonValue) -> str:
    """Return a list as one cell of a table, anything else as text."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def shortened(text: str, width: int) -> str:
    """Return a text without its middle where it is longer than ``width``."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _text(cell: object) -> Text:
    # Without what takes no room, so that the widths are right.
    if isinstance(cell, Text):
        return Text(harmless(cell.plain), style=cell.style)
    return Text(NOTHING if cell is None or cell == "" else harmless(str(cell)))


def _shortened(cell: Text, width: int) -> Text:
    return Text(shortened(cell.plain, width), style=cell.style)


def _leave_out_repeated(cells: Sequence[list[Text]]) -> None:
    above = None
    for row in cells:
        name = row[0].plain
        if name == above:
            row[0] = Text("")
        above = name


def _fitted(natural: Sequence[int], heads: Sequence[int]) -> list[int]:
    """Return the widths of the columns, the widest ones cut until the table fits."""
    widths = list(natural)
    room = WIDTH - 2 * (len(widths) - 1)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda i: widths[i])
        if widths[widest] <= max(_LEAST_CELL, heads[widest]):
            break
        widths[widest] -= 1
    return widths
