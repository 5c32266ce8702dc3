"""A newcomer's machine: a fresh virtual environment with the wheel, a directory, a terminal.

PySpark and Statekeep's other dependencies come from the environment that runs the tests, by one
line in a ``.pth`` file: to install 400 MB of PySpark anew would test pip. Statekeep itself comes from
the wheel alone, and an editable install of the checkout is not seen.
"""

import os
import pty
import re
import select
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
_END = b"\x03"
"""What a terminal sends for Ctrl-C."""
_DAEMON = re.compile(
    r"Traceback .*\n(?: .*pyspark/daemon\.py.*\n)*(?:(?<=\n)BrokenPipeError: .*\n|[ B].*\Z|\Z)"
)


def install(directory: Path) -> Path:
    """Build the wheel and install it in a fresh environment; return its Python."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    build = (*pip, "wheel", "--no-deps", "--wheel-dir", str(directory), str(ROOT))
    subprocess.run(build, check=True, cwd=directory)
    (wheel,) = directory.glob("statekeep-*.whl")
    subprocess.run((sys.executable, "-m", "venv", str(directory / "venv")), check=True)
    python = directory / "venv" / "bin" / "python"
    (packages,) = (directory / "venv").glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    pip_install(python, "--no-deps", str(wheel))
    return python


def pip_install(python: Path, *packages: str) -> None:
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install")
    subprocess.run((*pip, *packages), check=True)


def environment(directory: Path) -> Mapping[str, str]:
    """Return what a newcomer's shell has: a home and a temporary directory, nothing of this checkout."""
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return {
        **kept,
        "HOME": str(directory),
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AWS_EC2_METADATA_DISABLED": "true",  # else boto3 looks there for credentials, slowly
    }


class Terminal:
    """A program that runs on a terminal of its own."""

    def __init__(self, python: Path, program: str, directory: Path) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [str(python), program],
            cwd=directory,
            env=environment(directory),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(0),  # noqa: PLW1509 - no other threads here
        )
        os.close(slave)
        self.text = ""

    def wait_until(self, is_reached: Callable[[], bool], timeout_s: float = 120) -> None:
        """Read what is shown until a condition holds."""
        deadline = time.monotonic() + timeout_s
        while not is_reached():
            assert time.monotonic() < deadline, f"not reached:\n{self.text}"
            assert self._read() or is_reached(), f"the program has ended:\n{self.text}"

    def press_ctrl_c(self) -> int:
        """Press Ctrl-C; return the exit status of the program."""
        os.write(self._master, _END)
        return self.status()

    def status(self, timeout_s: float = 120) -> int:
        """Wait for the end of the program; return its exit status."""
        deadline = time.monotonic() + timeout_s
        while self._read():
            assert time.monotonic() < deadline, f"the program does not end:\n{self.text}"
        return self._process.wait(10)

    def kill(self) -> None:
        """Kill the program and all that it has started, as a power loss would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.status()

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        os.close(self._master)

    def lines(self, begin: str) -> list[str]:
        """Return what the lines of Statekeep's own that begin so say, without time and level."""
        said = [line.partition(" statekeep: ")[2] for line in self.text.splitlines()]
        return [line for line in said if line.startswith(begin)]

    def _read(self) -> bool:
        """Read for a moment; False at the end of the output."""
        ready, _, _ = select.select([self._master], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # how Linux says that the last process has closed the terminal
            return False
        self.text += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


def _take_terminal(descriptor: int) -> None:
    import fcntl  # noqa: PLC0415 - in the child alone
    import termios  # noqa: PLC0415

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def lose_local_disk(directory: Path) -> None:
    """Delete the local state, which lies below the temporary directory by default."""
    (local,) = (directory / "tmp").glob("statekeep-*")
    shutil.rmtree(local)


def without_daemon(text: str) -> str:
    """Return a program's output without the trace of Spark's own daemon.

    The daemon prints one where a worker is about to answer as the JVM ends. It is cut short where
    the program has ended by then, as the terminal goes with the program.
    """
    return _DAEMON.sub("", text)
