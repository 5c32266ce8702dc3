"""A Delta table that a killed driver has left: with the next driver, each row is there once."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from servers.delta_lake import delta_jars
from servers.process import ServerUnavailableError
from sink_kit import AFTER_THE_WRITE, IN_THE_WRITE, MOMENTS, Deliveries, KilledStream

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(500)]


class DeltaTable:
    """A table, read by its log, as a program without Spark does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> Deliveries:
        """Return the rows of the files that are in the log."""
        added = [entry["add"]["path"] for entry in self._log() if "add" in entry]
        return [row for name in added for row in self._read(self.path / name)]

    def all_rows(self) -> Deliveries:
        """Return the rows of all files that are there."""
        return [row for path in self.path.glob("part-*.parquet") for row in self._read(path)]

    def versions(self) -> list[int]:
        """Return the numbers of the batches that are in the log."""
        return [entry["txn"]["version"] for entry in self._log() if "txn" in entry]

    def _log(self) -> list[dict[str, Any]]:
        logs = sorted((self.path / "_delta_log").glob("*.json"))
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]

    def _read(self, path: Path) -> Deliveries:
        return [(row["id"], row["total"]) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_delta_table_has_each_row_once(tmp_path: Path, moment: str) -> None:
    try:
        jars = delta_jars()
    except ServerUnavailableError as exc:
        pytest.skip(str(exc))
    delta = DeltaTable(tmp_path / "lake")
    stream = KilledStream(
        tmp_path,
        heading="Delta Lake",
        replaced={"s3a://lake/totals": str(delta.path)},
        conf={
            "spark.jars": ",".join(map(str, jars)),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "1",
        },
    )
    stream.kill(moment)
    delivered = {IN_THE_WRITE: 1, AFTER_THE_WRITE: 2}[moment]
    assert sorted(delta.rows()) == sorted(stream.expected(delivered))
    assert len(delta.all_rows()) > len(stream.expected(1))  # the kill came after some of the batch
    stream.recover()
    assert sorted(delta.rows()) == sorted(stream.expected(3))
    assert delta.versions() == [0, 1, 2]
