"""The job's processor, as its user would write it for Spark alone."""

# pyspark leaves the values of state untyped, and one method for rows and frames.
# pyright: reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues
from typing_extensions import override

OUTPUT = "key string, n long, total long"
KEYS = 23
"""Different keys; a batch has some of them."""
RESIDUES = 5
"""Each key counts its values by residue, so that a map is in the state too."""


class Tally(StatefulProcessor):
    """Counts and sums ``v`` of each key; one row a key and batch, whatever the rows' order."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "n long, total long")
        self._residues = handle.getMapState("residues", "residue int", "n long")

    @override
    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        n, total = self._total.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.v
            residue = (row.v % RESIDUES,)
            seen = self._residues.getValue(residue) or (0,)
            self._residues.updateValue(residue, (seen[0] + 1,))
        self._total.update((n, total))
        yield Row(key=key[0], n=n, total=total)

    @override
    def close(self) -> None:
        """Nothing is open."""
