"""``make bench-blob``: a store's directory up to an S3 server and down again, beside copy tools.

Every tool moves the same files to and from the same server in one run; the figures are ratios to
each other, not of the machine. With ``--round-trip-ms`` a link with latency and bandwidth lies in
between.
"""

import argparse
import asyncio
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
from rich.console import Console
from rich.table import Table
from servers.process import find_program
from servers.seaweedfs import seaweedfs
from servers.slow_link import slow_link

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.fan_out import run_all
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.testing.blob_store_tests import ignore_bytes

BUCKET = "statekeep-bench"
FILE_BYTES = 64 << 20
SMALL_FILES = 20
METADATA = BlobMetadata(task=None, store_name=None, payload_name="bench")


@dataclass(frozen=True)
class Job:
    """One directory to move, and where the server is."""

    source: Path
    target: Path
    endpoint: str

    @property
    def files(self) -> list[Path]:
        return sorted(self.source.iterdir())

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)


@dataclass(frozen=True)
class Measured:
    """One direction of one tool."""

    megabytes_per_second: float
    cpu_seconds_per_gigabyte: float


def make_store(directory: Path, total_bytes: int) -> None:
    """Write files such as RocksDB's: many of its default size, a few small ones."""
    chance = random.Random(7)
    block = chance.randbytes(1 << 20)
    for number in range(max(total_bytes // FILE_BYTES, 1)):
        with (directory / f"{number:06d}.sst").open("wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(chance.randbytes(64) + block[64:])
    for number in range(SMALL_FILES):
        (directory / f"OPTIONS-{number:06d}").write_bytes(chance.randbytes(5000))


async def _statekeep(job: Job, *, is_upload: bool) -> None:
    executor = BoundedExecutor(16, "bench")
    settings = {"uri": f"s3://{BUCKET}/statekeep", "s3.endpoint": job.endpoint}
    factory = BlobBackendFactory(BackendName("blob"), settings)
    manager = factory.blob_store_manager(executor, SystemClock())
    await manager.init()
    if is_upload:
        await run_all([manager.put(path.name, path, METADATA) for path in job.files])
    else:
        names = [path.name for path in job.files]
        await run_all([manager.download(n, job.target / n, ignore_bytes) for n in names])
    await manager.close()
    await executor.close()


def statekeep(job: Job, *, is_upload: bool) -> None:
    """Ours: with the sha-256 of all that comes down."""
    asyncio.run(_statekeep(job, is_upload=is_upload))


def plain_boto3(job: Job, *, is_upload: bool) -> None:
    """The SDK's own transfers, four files at a time."""
    client = boto3.client("s3", endpoint_url=job.endpoint)

    def move(path: Path) -> None:
        key = f"boto3/{path.name}"
        if is_upload:
            client.upload_file(str(path), BUCKET, key)
        else:
            client.download_file(BUCKET, key, str(job.target / path.name))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, job.files))


def obstore(job: Job, *, is_upload: bool) -> None:
    """The Rust client, four files at a time."""
    from obstore.store import S3Store  # noqa: PLC0415  # may be missing

    store = S3Store(
        BUCKET, endpoint=job.endpoint, client_options={"allow_http": True}, prefix="obstore"
    )

    def move(path: Path) -> None:
        if is_upload:
            store.put(path.name, path)
            return
        with (job.target / path.name).open("wb") as file:
            for chunk in store.get(path.name).stream(8 << 20):
                file.write(chunk)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, job.files))


def s5cmd(job: Job, *, is_upload: bool) -> None:
    remote = f"s3://{BUCKET}/s5cmd/"
    ends = [f"{job.source}/", remote] if is_upload else [f"{remote}*", f"{job.target}/"]
    _run("s5cmd", "--endpoint-url", job.endpoint, "cp", *ends)


def rclone(job: Job, *, is_upload: bool) -> None:
    remote = f":s3,provider=SeaweedFS,env_auth=true,endpoint='{job.endpoint}':{BUCKET}/rclone"
    ends = [str(job.source), remote] if is_upload else [remote, str(job.target)]
    _run("rclone", "copy", "--transfers=8", "--config=/dev/null", *ends)


def _run(program: str, *arguments: str) -> None:
    path = find_program(program)
    if path is None:
        raise FileNotFoundError(program)
    subprocess.run([path, *arguments], check=True, stdout=subprocess.DEVNULL)


TOOLS: dict[str, Callable[..., None]] = {
    "statekeep": statekeep,
    "boto3": plain_boto3,
    "obstore": obstore,
    "s5cmd": s5cmd,
    "rclone": rclone,
}


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


def measure(tool: Callable[..., None], job: Job, *, is_upload: bool) -> Measured:
    """Run one direction of one tool."""
    shutil.rmtree(job.target, ignore_errors=True)
    job.target.mkdir()
    cpu, started = _cpu_seconds(), time.monotonic()
    _in_child(lambda: tool(job, is_upload=is_upload))
    elapsed = time.monotonic() - started
    cpu = _cpu_seconds() - cpu
    if not is_upload:
        _compare(job)
    return Measured(job.size / elapsed / 1e6, cpu / (job.size / 1e9))


def _compare(job: Job) -> None:
    for path in job.files:
        if path.stat().st_size != (job.target / path.name).stat().st_size:
            raise RuntimeError(f"not the bytes that were sent: file={path.name}")


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


def main() -> int:
    """Measure every tool, both ways; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1300)
    parser.add_argument("--round-trip-ms", type=float, default=0)
    parser.add_argument("--link-megabytes-per-second", type=int, default=100)
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.megabytes} MB, {arguments.round_trip_ms:g} ms round trip")
    for heading in ("tool", "up MB/s", "up CPU s/GB", "down MB/s", "down CPU s/GB"):
        table.add_column(heading, justify="left" if heading == "tool" else "right")
    bytes_per_second = arguments.link_megabytes_per_second * 1_000_000
    with TemporaryDirectory(prefix="statekeep-bench-") as directory:
        source = Path(directory, "source")
        source.mkdir()
        make_store(source, arguments.megabytes * 1_000_000)
        with server(arguments.round_trip_ms, bytes_per_second) as endpoint:
            job = Job(source, Path(directory, "target"), endpoint)
            for name in arguments.tools:
                both = [measure(TOOLS[name], job, is_upload=way) for way in (True, False)]
                cells = [
                    figure
                    for way in both
                    for figure in (
                        f"{way.megabytes_per_second:.0f}",
                        f"{way.cpu_seconds_per_gigabyte:.2f}",
                    )
                ]
                table.add_row(name, *cells)
    Console(highlight=False).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
