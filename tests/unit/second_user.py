"""What only a test that runs as root can do: be another user as well."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statekeep.stores.local_files import remove_tree

NOBODY = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="not run as root: there is no second user to try it with"
)


def run_as_nobody(imports: str, code: str, *arguments: object) -> str:
    """Run Python code as the user nobody, and return what it printed.

    Args:
        imports: Done as root: the interpreter may lie where nobody else can read.
        code: Done as nobody.
        arguments: Its ``sys.argv[1:]``.
    """
    program = f"import os, sys\n{imports}\nos.setgroups([])\nos.setresgid(*[{NOBODY}] * 3)\n"
    program += f"os.setresuid(*[{NOBODY}] * 3)\n{code}"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@contextmanager
def shared_directory() -> Iterator[Path]:
    """Make a directory that every user can reach and write to, as ``/tmp`` is."""
    directory = Path(tempfile.mkdtemp(prefix="statekeep-shared-"))
    directory.chmod(0o1777)
    try:
        yield directory
    finally:
        remove_tree(directory)


def give_to_nobody(directory: Path) -> None:
    """Make a directory and all that is in it nobody's."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
