"""What every server of the tests needs: a port, a start that ends ready, a stop by its own id.

A server's module offers one context manager, built on `running`; a session fixture enters it
through `required`. Not being able to start is `ServerUnavailableError`, which says what to install.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

_POLL_S: Final = 0.05
_STOP_S: Final = 20
_LOG_TAIL: Final = 2000


class ServerUnavailableError(Exception):
    """Raised when a server cannot be started on this machine; says what is missing."""


def free_ports(count: int = 1) -> list[int]:
    """Return unused ports, all different."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]


def find_program(name: str) -> str | None:
    """Return the path of a program: of this virtual environment, or of the system."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def is_listening(port: int) -> bool:
    """Return whether a process accepts connections on a port of this machine."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def temporary_directory(name: str) -> Generator[Path]:
    """Make a directory for a server's files; it is gone after."""
    with TemporaryDirectory(prefix=f"statekeep-{name}-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    is_ready: Callable[[], bool],
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60,
    grace_s: float = _STOP_S,
) -> Generator["subprocess.Popen[bytes]"]:
    """Run a server until the block ends; it also ends with the process that started it.

    Args:
        command: Starts the server in the foreground. Standard input is a pipe that stays open.
        log: Where its output goes.
        is_ready: Asked repeatedly; an `OSError` means not yet.
        env: Added to this process's environment.
        timeout_s: For it to get ready.
        grace_s: For it to end when asked, before it is killed.

    Raises:
        ServerUnavailableError: It ended or was not ready in time; with the end of its output.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*_dies_with_parent(), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=log.parent,
        )
    try:
        _wait_ready(process, command[0], log, is_ready, timeout_s)
        yield process
    finally:
        stop(process, grace_s)


def stop(process: "subprocess.Popen[bytes]", grace_s: float = _STOP_S) -> None:
    """End a process that we started: asked first, killed if it does not listen. Idempotent."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def required(server: AbstractContextManager[T]) -> Generator[T]:
    """Enter a server's context manager for tests: where it cannot start, they are skipped.

    With ``CI=true`` that is a failure instead.
    """
    with ExitStack() as stack:
        try:
            entered = stack.enter_context(server)
        except ServerUnavailableError as exc:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(exc))
        yield entered


def _dies_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _wait_ready(
    process: "subprocess.Popen[bytes]",
    name: str,
    log: Path,
    is_ready: Callable[[], bool],
    timeout_s: float,
) -> None:
    deadline = time.monotonic() + timeout_s
    while not _answers(is_ready):
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_POLL_S)
            raise ServerUnavailableError(f"{name} ended with {code}: {_tail(log)}")
        if time.monotonic() > deadline:
            raise ServerUnavailableError(f"{name} not ready in {timeout_s} s: {_tail(log)}")


def _answers(is_ready: Callable[[], bool]) -> bool:
    try:
        return is_ready()
    except OSError:
        return False


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_TAIL:]
