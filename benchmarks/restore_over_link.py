"""``make bench-restore``: the longest chain of deltas beside its base, restored over a link.

A store and its commits are made as `benchmarks.increments` does; the blobs are copied to an S3 server
and restored from there, first as it is, then behind a link with latency and bandwidth.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import boto3
from rich.console import Console
from servers.slow_link import slow_link

from benchmarks.blob_tools import BUCKET
from benchmarks.blob_transfer import server
from benchmarks.figures import Figure, show
from benchmarks.increments import (
    BLOB,
    THREADS,
    Commit,
    commit_all,
    restore_all,
    restore_figures,
    subjects,
)
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.commit.executor import BoundedExecutor

MOST_RATIO = 1.3
"""Aim for the longest chain against the base, behind the link."""


async def measure(
    size_mb: int, commits: int, round_trip_ms: float, link_megabytes_per_second: int
) -> list[Figure]:
    """Restore from the same server without the link and behind it."""
    link = f"{link_megabytes_per_second} MB/s and {round_trip_ms:g} ms"
    figures: list[Figure] = []
    executor = BoundedExecutor(THREADS, "benchmark")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statekeep-bench-")))
        made = await commit_all(root, size_mb, commits, executor)
        near = stack.enter_context(server(0, 0))
        _copy(root / "place", made, near)
        port = stack.enter_context(
            slow_link(
                urlsplit(near).port or 0,
                round_trip_ms=round_trip_ms,
                bytes_per_second=link_megabytes_per_second * 1_000_000,
            )
        )
        cases = {"without a link": near, f"behind {link}": f"http://127.0.0.1:{port}"}
        for case, endpoint in cases.items():
            seconds = await restore_all(root, made, partial(_factory, endpoint), executor)
            figures += restore_figures(f"{size_mb / 1000:g} GB, {case}", seconds)
    await executor.close()
    return figures


def _copy(place: Path, made: Sequence[Commit], endpoint: str) -> None:
    """Copy the blobs that are to be restored to the server."""
    client = boto3.client("s3", endpoint_url=endpoint)
    blobs: set[str] = set()
    for commit in subjects(made).values():
        blobs |= {*commit.checkpoint.markers_of(BLOB).values(), *commit.index.blob_ids()}
    for blob in sorted(blobs):
        client.upload_file(str(place / blob), BUCKET, blob)


def _factory(endpoint: str) -> BlobBackendFactory:
    return BlobBackendFactory(BLOB, {"uri": f"s3://{BUCKET}", "s3.endpoint": endpoint})


def main() -> int:
    """Measure, print, and say whether the aim is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=400)
    parser.add_argument("--round-trip-ms", type=float, default=20)
    parser.add_argument("--link-megabytes-per-second", type=int, default=100)
    arguments = parser.parse_args()
    figures = asyncio.run(
        measure(
            arguments.megabytes,
            arguments.commits,
            arguments.round_trip_ms,
            arguments.link_megabytes_per_second,
        )
    )
    console = Console(highlight=False, width=140)
    show(console, figures)
    ratio = figures[-1].ratio or 0
    met = "met   " if ratio <= MOST_RATIO else "MISSED"
    console.print(f"{met}  longest chain to base, behind the link: {ratio:.2f} to {MOST_RATIO}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
