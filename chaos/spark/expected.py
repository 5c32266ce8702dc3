"""What state and output must be: a fold over the input, batch by batch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.spark.tally import KEYS, RESIDUES

Row = tuple[str, int, int]


@dataclass
class Expected:
    """The job's state after some batches."""

    totals: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    residues: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])

    def fold(self, rows: Sequence[tuple[str, int]]) -> list[Row]:
        """Take in one batch; return its output, sorted."""
        for key, v in rows:
            n, total = self.totals.get(key, (0, 0))
            self.totals[key] = (n + 1, total + v)
            place = (key, v % RESIDUES)
            self.residues[place] = self.residues.get(place, 0) + 1
        return sorted((key, *self.totals[key]) for key in {key for key, _ in rows})

    def copy(self) -> "Expected":
        """Return the state as it is now."""
        return Expected(dict(self.totals), dict(self.residues))


def rows_between(
    before: str | None, offsets: str, source: str, files: Mapping[int, Sequence[Path]]
) -> list[tuple[str, int]]:
    """Return the rows of a batch, from what the query's ``offsets`` say of it.

    Args:
        before: Text of the offsets of the batch before; None for the first batch.
        offsets: Text of the batch's own.
        source: ``file`` or ``rate``.
        files: ``{log offset: files}`` of the file source.
    """
    if source == "rate":
        first = 0 if before is None else _source_offset(before)["offset"]
        numbers = range(first, _source_offset(offsets)["offset"])
        return [(f"key-{number * 7919 % KEYS}", number) for number in numbers]
    first = 0 if before is None else _source_offset(before)["logOffset"] + 1
    entries = range(first, _source_offset(offsets)["logOffset"] + 1)
    return [row for entry in entries for path in files[entry] for row in rows_of(path)]


def rows_of(path: Path) -> list[tuple[str, int]]:
    """Return the rows of one input file."""
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    return [(document["key"], document["v"]) for document in documents]


def _source_offset(offsets: str) -> dict[str, int]:
    """Return the offset of the one source: the third line of Spark's file."""
    found: dict[str, int] = json.loads(offsets.split("\n")[2])
    return found
