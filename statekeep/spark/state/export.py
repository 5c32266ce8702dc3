"""Rows of state as files and as text, for the command line."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from statekeep.inspection.job import OpenJob
from statekeep.inspection.task_restore import Progress
from statekeep.spark.state.key_text import parse_fields
from statekeep.spark.state.plan import StatePlan, StateRequest
from statekeep.spark.state.reading import open_state

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a command reads, and what it shows meanwhile. Every method blocks."""

    request: StateRequest
    key: str | None
    """As the user typed it; None: all keys."""
    on_progress: Progress
    open_it: OpenJob

    def write(self, kind: str, target: BinaryIO) -> None:
        """Write every row in the form of one of `WRITERS`; the target is not closed.

        Raises:
            StateBackupError: As `open_state`; or the key does not fit.
        """
        with self._open() as (schema, batches):
            WRITERS[kind](schema, batches, target)

    def first_rows(self, limit: int) -> tuple[list[str], list[list[str]], bool]:
        """Return the names of the columns, the first rows as text, and whether there are more.

        Raises:
            StateBackupError: As `write`.
        """
        with self._open() as (schema, batches):
            names = _flat_names(schema)
            rows = list(islice(_flat_rows(schema, batches), limit + 1))
        return names, rows[:limit], len(rows) > limit

    def _open(self) -> AbstractContextManager[tuple[pa.Schema, Batches]]:
        return open_state(self.request, self._narrowed, self.on_progress, self.open_it)

    def _narrowed(self, plan: StatePlan) -> StatePlan:
        if self.key is None:
            return plan
        return plan.with_key(parse_fields(self.key, plan.table.keys))


def _write_arrow(schema: pa.Schema, batches: Batches, target: BinaryIO) -> None:
    with pa.ipc.new_stream(target, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_parquet(schema: pa.Schema, batches: Batches, target: BinaryIO) -> None:
    with pq.ParquetWriter(target, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_json(schema: pa.Schema, batches: Batches, target: BinaryIO) -> None:
    """Write one array, a row in each line."""
    target.write(b"[")
    for number, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches)):
        values = {field.name: _plain(row[field.name], field.type) for field in schema}
        target.write(b",\n" if number else b"\n")
        target.write(json.dumps(values, ensure_ascii=False).encode())
    target.write(b"\n]\n")


def _write_csv(schema: pa.Schema, batches: Batches, target: BinaryIO) -> None:
    text = io.TextIOWrapper(target, "utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(_flat_names(schema))
    writer.writerows(_flat_rows(schema, batches))
    text.detach()  # else it would close the target


WRITERS: Final[dict[str, Callable[[pa.Schema, Batches, BinaryIO], None]]] = {
    "arrow": _write_arrow,
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
}
"""By format, what writes it."""


def _flat_names(schema: pa.Schema) -> list[str]:
    """Return the names of the columns, those of the fields of a struct in its place."""
    return [
        name
        for field in schema
        for name in (
            [f"{field.name}.{child.name}" for child in field.type]
            if pa.types.is_struct(field.type)
            else [field.name]
        )
    ]


def _flat_rows(schema: pa.Schema, batches: Batches) -> Iterator[list[str]]:
    for row in chain.from_iterable(batch.to_pylist() for batch in batches):
        cells: list[Any] = []
        for field in schema:
            value = _plain(row[field.name], field.type)
            if pa.types.is_struct(field.type):
                cells.extend((value or {}).get(child.name) for child in field.type)
            else:
                cells.append(value)
        yield [_cell(cell) for cell in cells]


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)


def _plain(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - of any type
    """Return a value as JSON has it; what it has no form for is text, and bytes are hexadecimal."""
    found: Any
    if value is None or isinstance(value, bool | int | str):
        found = value
    elif isinstance(value, float):
        found = value if math.isfinite(value) else str(value)
    elif isinstance(value, bytes):
        found = value.hex()
    elif pa.types.is_struct(kind):
        found = {child.name: _plain(value[child.name], child.type) for child in kind}
    elif pa.types.is_map(kind):
        pairs = [[_plain(k, kind.key_type), _plain(v, kind.item_type)] for k, v in value]
        found = dict(pairs) if pa.types.is_string(kind.key_type) else pairs
    elif pa.types.is_list(kind):
        found = [_plain(item, kind.value_type) for item in value]
    else:
        found = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return found
