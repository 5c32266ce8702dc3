"""A Google Cloud Storage server: the emulator of the wheel `gcp-storage-emulator`.

It takes no notice of ``ifGenerationMatch``. Run as a program of its own, this file teaches it the one
condition that creates are made with, to answer as Google's documentation says.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
def gcs_emulator(bucket: str, *, has_conditions: bool = True) -> Generator[GcsServer]:
    """Run the server with one empty bucket.

    Args:
        bucket: Its name.
        has_conditions: Whether an upload with ``ifGenerationMatch=0`` creates and never overwrites.
    """
    if find_spec("gcp_storage_emulator") is None:
        raise ServerUnavailableError("the emulator is missing: pip install gcp-storage-emulator")
    [port] = free_ports()
    conditions = "conditions" if has_conditions else "none"
    command = [sys.executable, __file__, str(port), bucket, conditions]
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with temporary_directory("gcs") as directory:
        ready = running(
            command, log=directory / "log", is_ready=lambda: is_listening(port), env=env
        )
        with ready as process:
            yield GcsServer(port, process.pid)


def _teach_conditions() -> None:
    """Refuse what would overwrite: to be called before the emulator takes note of its handlers."""
    objects: Any = import_module("gcp_storage_emulator.handlers.objects")
    insert = objects.insert

    def insert_on_condition(request: Any, response: Any, storage: Any) -> None:
        # The emulator serves one request at a time, so nothing comes between look and insert.
        if request.query.get("ifGenerationMatch") == ["0"]:
            data = request.data
            meta = data.get("meta", data) if isinstance(data, dict) else {}
            [name] = request.query.get("name") or [meta["name"]]
            try:
                storage.get_file_obj(request.params["bucket_name"], name)
            except objects.NotFound:
                pass
            else:
                response.status = HTTPStatus.PRECONDITION_FAILED
                return
        insert(request, response, storage)

    objects.insert = insert_on_condition


def _serve(port: int, bucket: str, *, has_conditions: bool) -> None:
    if has_conditions:
        _teach_conditions()
    emulator: Any = import_module("gcp_storage_emulator.server")
    emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=bucket).run()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2], has_conditions=sys.argv[3] == "conditions")
