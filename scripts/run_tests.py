"""Runs pytest with the temporary directories of tests in memory, where there is room: they sync files often.

Usage: run_tests.py [option of pytest ...]
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - of Linux; a directory in it is made with a name of its own
ROOM_BYTES = 8 << 30
"""Far more than the tests need, which share the machine's memory with it."""


def main(options: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", *options]
    if not IN_MEMORY.is_dir() or shutil.disk_usage(IN_MEMORY).free < ROOM_BYTES:
        return subprocess.run(command, check=False).returncode
    with tempfile.TemporaryDirectory(prefix="statekeep-tests-", dir=IN_MEMORY) as directory:
        base = Path(directory, "t")
        return subprocess.run([*command, f"--basetemp={base}"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
