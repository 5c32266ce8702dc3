"""A Google Cloud Storage server: the emulator of the wheel `gcp-storage-emulator`.

It takes no notice of ``ifGenerationMatch``: nothing about atomic create can be proven with it.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from servers.process import (
    ServerUnavailableError,
    free_ports,
    is_listening,
    running,
    temporary_directory,
)


@dataclass(frozen=True, slots=True)
class GcsServer:
    """Where the server answers; it asks for no credentials."""

    port: int
    pid: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def gcs_emulator(bucket: str) -> Generator[GcsServer]:
    """Run the server with one empty bucket."""
    if find_spec("gcp_storage_emulator") is None:
        raise ServerUnavailableError("the emulator is missing: pip install gcp-storage-emulator")
    [port] = free_ports()
    with temporary_directory("gcs") as directory:
        command = [
            sys.executable,
            "-m",
            "gcp_storage_emulator",
            "start",
            "--host=127.0.0.1",
            f"--port={port}",
            "--in-memory",
            f"--default-bucket={bucket}",
        ]
        ready = running(command, log=directory / "log", is_ready=lambda: is_listening(port))
        with ready as process:
            yield GcsServer(port, process.pid)
