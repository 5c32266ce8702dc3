"""``python -m statekeep.spark.sidecar DIRECTORY LOCK``: start the sidecar that lives there.

What it is started with comes on standard input: a `SidecarSpec` as JSON. ``LOCK`` is the number of
the descriptor by which it inherits its lock.
"""

import os
import sys
from pathlib import Path


def main(directory: Path, lock: int) -> None:
    """Leave the launcher behind, and serve."""
    given = sys.stdin.buffer.read()
    if os.fork() > 0:
        return
    _let_go_of_stdin()
    # Only here: the task that starts a sidecar waits until the launcher has ended, and the imports
    # are most of a sidecar's start.
    from statekeep.spark.sidecar.process import run  # noqa: PLC0415

    run(directory, lock, given)


def _let_go_of_stdin() -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
