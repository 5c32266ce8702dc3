"""A location as Spark wrote it, and the commands that look after it."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from cli_kit import CommandLine, Result
from spark_locations_kit import unpack_location

from statekeep.cli.exit_status import ExitStatus


@contextmanager
def daemon(line: Sequence[str], end: signal.Signals = signal.SIGTERM) -> Iterator[IO[str]]:
    """Run a command as a process of its own, give its stdout, and end it as a service is ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "statekeep.cli", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout
        finally:
            process.send_signal(end)
        assert process.wait(timeout=20) == ExitStatus.FINE
        assert process.stderr.read() == ""


class Guard:
    """The commands on one location, which begins with its first batches and goes on."""

    def __init__(self, run: CommandLine, root: Path, form: str) -> None:
        self._run = run
        self.root = root
        self.full = unpack_location(form, root / "full")
        self.location = root / "location"
        shutil.copytree(self.full, self.location)
        self.copies = root / "copies"

    def commit_until(self, batch: int) -> None:
        """Let only batches up to one be committed."""
        for number in range(5):
            for name in (str(number), f".{number}.crc"):
                (self.location / "commits" / name).unlink(missing_ok=True)
                if number <= batch:
                    shutil.copy(self.full / "commits" / name, self.location / "commits" / name)

    def run(self, options: str = "") -> Result:
        line = f"guard run {self.location} --once --to {self.copies.as_uri()} --json {options}"
        return self._run(line, has_config=False)

    def restore(self, target: Path, copy: object = "", options: str = "") -> Result:
        line = f"guard restore {self.location} {copy} --from {self.copies.as_uri()} --to {target}"
        return self._run(f"{line} --json {options}", has_config=False)

    def verify(self, copy: object = "", options: str = "") -> Result:
        line = f"guard verify {self.location} {copy} --from {self.copies.as_uri()} --json"
        return self._run(f"{line} {options}", has_config=False)

    def inspect(self, location: Path) -> Any:
        return self._run(f"guard inspect {location} --deep --json", has_config=False).json

    def about(self, command: str, job: str) -> Result:
        """Run another command on the job of the copies."""
        where = f"--set job.name={job} --set blob.store.uri={self.copies.as_uri()}"
        return self._run(f"{command} {where} --set stores.backup.factories=blob", has_config=False)

    def blobs(self) -> set[Path]:
        return {p for p in self.copies.rglob("*") if p.is_file() and "state-" in str(p)}


def content(location: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(location)): p.read_bytes() for p in location.rglob("*") if p.is_file()
    }
