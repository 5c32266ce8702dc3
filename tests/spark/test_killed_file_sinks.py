"""Files that a killed driver has left: with the next driver, each row is there once."""

import json
from pathlib import Path

import pytest
from sink_kit import AFTER_THE_WRITE, IN_THE_WRITE, MOMENTS, Deliveries, KilledStream

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(500)]


def rows_in(paths: list[Path]) -> Deliveries:
    found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [(row["id"], row["total"]) for row in found]


def logged(out: Path) -> list[Path]:
    """Return the files that Spark's file sink has in its log."""
    found: list[Path] = []
    for log in (out / "_spark_metadata").glob("[0-9]*"):
        entries = map(json.loads, log.read_text().splitlines()[1:])
        found += [Path(entry["path"].removeprefix("file://")) for entry in entries]
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_files_of_sparks_sink_have_each_row_once(tmp_path: Path, moment: str) -> None:
    out = tmp_path / "out"
    stream = KilledStream(tmp_path, format="json", options={"path": str(out)})
    stream.kill(moment)
    delivered = {IN_THE_WRITE: 1, AFTER_THE_WRITE: 2}[moment]
    assert sorted(rows_in(logged(out))) == sorted(stream.expected(delivered))
    left = rows_in(list(out.rglob("part-*.json")))
    assert len(left) > len(stream.expected(1))  # the kill came after some of the batch
    stream.recover()
    assert sorted(rows_in(logged(out))) == sorted(stream.expected(3))


@pytest.mark.parametrize("moment", MOMENTS)
def test_directories_of_batches_have_each_row_once(tmp_path: Path, moment: str) -> None:
    out = tmp_path / "totals"
    stream = KilledStream(
        tmp_path,
        heading="A directory for each batch",
        replaced={"hdfs:///data": str(tmp_path), '"parquet", compression="zstd"': '"json"'},
    )
    stream.kill(moment)
    delivered = {IN_THE_WRITE: 1, AFTER_THE_WRITE: 2}[moment]
    published = list(out.glob("batch=*/part-*.json"))
    assert sorted(rows_in(published)) == sorted(stream.expected(delivered))
    assert bool(list((out / "_staging").rglob("part-*.json"))) == (moment == IN_THE_WRITE)
    stream.recover()
    assert sorted(rows_in(list(out.glob("batch=*/part-*.json")))) == sorted(stream.expected(3))
    assert not list((out / "_staging").iterdir())
