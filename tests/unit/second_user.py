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

OTHER_USER = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="not run as root: there is no second user to try it with"
)


def run_as_other_user(imports: str, code: str, *arguments: object) -> str:
    """Run Python code as another user, and return what it printed.

    Args:
        imports: Done as root: the interpreter may lie where only root can read.
        code: Done as the other user.
        arguments: Its ``sys.argv[1:]``.
    """
    program = f"import os, sys\n{imports}\nos.setgroups([])\nos.setresgid(*[{OTHER_USER}] * 3)\n"
    program += f"os.setresuid(*[{OTHER_USER}] * 3)\n{code}"
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


def give_to_other_user(directory: Path) -> None:
    """Give a directory and all that is in it to the other user."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)
