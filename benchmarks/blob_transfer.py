"""``make bench-blob``: a store's directory up to an S3 server and down again, beside copy tools.

Every tool moves the same files to and from the same server in one run, in several rounds of changing
order; a figure is the median of its rounds, and what counts is how the figures stand to each other.
With ``--round-trip-ms`` a link with latency and bandwidth lies in between.
"""

import argparse
import hashlib
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import boto3
from rich.console import Console
from rich.table import Table
from servers.seaweedfs import seaweedfs
from servers.slow_link import slow_link

from benchmarks.blob_tools import BUCKET, IMAGE, TOOLS, Job, seal

FILE_BYTES = 64 << 20
SMALL_FILES = 20
LEAST_SHARE_OF_LINK = 0.9
WAYS = ("up", "down")
OURS = ("statekeep", "statekeep-commit")
"""File by file, and all of a commit: with hashing, packs and the index."""


@dataclass(frozen=True)
class Measured:
    """One direction of one tool."""

    megabytes_per_second: float
    cpu_seconds_per_gigabyte: float


Results = Mapping[tuple[str, str], Measured]
"""By tool and direction."""


def make_store(directory: Path, total_bytes: int) -> None:
    """Write files such as RocksDB's: many of its default size, a few small ones."""
    chance = random.Random(7)
    block = chance.randbytes(1 << 20)
    for number in range(max(total_bytes // FILE_BYTES, 1)):
        with (directory / f"{number:06d}.sst").open("wb") as file:
            for _ in range(min(FILE_BYTES, total_bytes) >> 20):
                file.write(chance.randbytes(64) + block[64:])
    for number in range(SMALL_FILES):
        (directory / f"OPTIONS-{number:06d}").write_bytes(chance.randbytes(5000))


def _cpu_seconds() -> float:
    usages = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _in_child(call: Callable[[], None]) -> None:
    """Run a call in a process of its own, so that its processor time is told apart."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"a transfer failed: status={status}")


def measure(
    tool: Callable[..., None], job: Job, digests: Mapping[str, str], *, is_upload: bool
) -> Measured:
    """Run one direction of one tool; what came down is compared with what was sent."""
    shutil.rmtree(job.target, ignore_errors=True)
    job.target.mkdir()
    cpu, started = _cpu_seconds(), time.monotonic()
    _in_child(lambda: tool(job, is_upload=is_upload))
    elapsed = time.monotonic() - started
    cpu = _cpu_seconds() - cpu
    if not is_upload and _digests(job.target) != digests:
        raise RuntimeError("not the bytes that were sent")
    return Measured(job.size / elapsed / 1e6, cpu / (job.size / 1e9))


def _digests(directory: Path) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for path in directory.iterdir():
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


@contextmanager
def server(round_trip_ms: float, bytes_per_second: int) -> Iterator[str]:
    """Run the server, behind a slow link where there is a latency; gives its endpoint."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "statekeep",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with ExitStack() as stack:
        found = stack.enter_context(seaweedfs())
        boto3.client("s3", endpoint_url=found.endpoint).create_bucket(Bucket=BUCKET)
        if not round_trip_ms:
            yield found.endpoint
            return
        link = slow_link(found.port, round_trip_ms=round_trip_ms, bytes_per_second=bytes_per_second)
        yield f"http://127.0.0.1:{stack.enter_context(link)}"


def measure_all(
    directory: Path,
    tools: Sequence[str],
    rounds: int,
    make_server: Callable[[], AbstractContextManager[str]],
) -> Results:
    """Run every tool both ways, each round in another order; return medians.

    Args:
        directory: Holds the store, sealed.
        tools: Their names.
        rounds: How many; each with a server of its own, for its disk does not get back what was
            written over.
        make_server: Runs a server and gives its endpoint.
    """
    digests = _digests(directory / "version" / IMAGE)
    made: dict[tuple[str, str], list[Measured]] = {}
    for number in range(rounds):
        with make_server() as endpoint:
            job = Job(directory / "version", directory / "target", endpoint)
            for tool in random.Random(number).sample(tools, len(tools)):
                for way in WAYS:
                    one = measure(TOOLS[tool], job, digests, is_upload=way == "up")
                    made.setdefault((tool, way), []).append(one)
    return {
        (tool, way): Measured(
            median(each.megabytes_per_second for each in made[tool, way]),
            median(each.cpu_seconds_per_gigabyte for each in made[tool, way]),
        )
        for tool in tools
        for way in WAYS
    }


def verdicts(results: Results, link_megabytes_per_second: float | None) -> list[str]:
    """Hold the figures against the aims; what was not measured is left out.

    Args:
        results: Of all tools.
        link_megabytes_per_second: The link's rate; None: there is none in between.
    """
    lines: list[str] = []

    def compare(what: str, ours: float, other: float, *, is_met: bool) -> None:
        lines.append(f"{'met   ' if is_met else 'MISSED'}  {what}: {ours:.2f} to {other:.2f}")

    for name, way in product(OURS, WAYS):
        ours = results.get((name, way))
        if ours is None:
            continue
        what, rate, cpu = f"{name}, {way}", ours.megabytes_per_second, ours.cpu_seconds_per_gigabyte
        for tool in ("s5cmd", "rclone"):
            if (other := results.get((tool, way))) is not None:
                theirs = other.megabytes_per_second
                compare(f"{what}, MB/s, not below {tool}", rate, theirs, is_met=rate >= theirs)
        if (other := results.get(("boto3", way))) is not None:
            theirs = other.cpu_seconds_per_gigabyte
            compare(f"{what}, CPU s/GB, not above boto3", cpu, theirs, is_met=cpu <= theirs)
        if link_megabytes_per_second is not None:
            share = rate / link_megabytes_per_second
            is_met = share >= LEAST_SHARE_OF_LINK
            compare(f"{what}, share of the link", share, LEAST_SHARE_OF_LINK, is_met=is_met)
    return lines


def table_of(results: Results, title: str, link_megabytes_per_second: float | None) -> Table:
    """Lay the figures out, with the share of the link where there is one."""
    table = Table("tool", title=title)
    for way in WAYS:
        for heading in ("MB/s", "CPU s/GB", *(["of link"] if link_megabytes_per_second else [])):
            table.add_column(f"{way} {heading}", justify="right")
    for tool in dict.fromkeys(tool for tool, _ in results):
        cells: list[str] = []
        for way in WAYS:
            found = results[tool, way]
            cells += [f"{found.megabytes_per_second:.0f}", f"{found.cpu_seconds_per_gigabyte:.2f}"]
            if link_megabytes_per_second:
                cells.append(f"{found.megabytes_per_second / link_megabytes_per_second:.2f}")
        table.add_row(tool, *cells)
    return table


def main() -> int:
    """Measure every tool, both ways; print a table and what became of the aims."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1300)
    parser.add_argument("--round-trip-ms", type=float, default=0)
    parser.add_argument("--link-megabytes-per-second", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    arguments = parser.parse_args()
    rate: int = arguments.link_megabytes_per_second
    with TemporaryDirectory(prefix="statekeep-bench-") as name:
        directory = Path(name)
        image = directory / "version" / IMAGE
        image.mkdir(parents=True)
        make_store(image, arguments.megabytes * 1_000_000)
        seal(directory / "version")
        make_server = partial(server, arguments.round_trip_ms, rate * 1_000_000)
        results = measure_all(directory, arguments.tools, arguments.rounds, make_server)
    console = Console(highlight=False, width=120)
    link = rate if arguments.round_trip_ms else None
    title = (
        f"{arguments.megabytes} MB, {arguments.round_trip_ms:g} ms round trip, "
        f"median of {arguments.rounds}"
    )
    console.print(table_of(results, title, link))
    for line in verdicts(results, link):
        console.print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
