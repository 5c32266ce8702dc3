"""Driver processes, and what they have delivered."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import racing_driver
from conftest import Rows

import statekeep as sk


class Driver:
    """A process that runs `racing_driver`."""

    def __init__(self, root: Path, number: int, **environment: str) -> None:
        self._root = root
        self._log = (root / f"driver-{number}.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, racing_driver.__file__, str(root), str(number)],
            cwd=Path(__file__).parent,
            env={
                **os.environ,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": os.pathsep.join(
                    map(str, [Path(__file__).parent, Path(sk.__file__).parents[1]])
                ),
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def hear(self) -> str:
        """Return the next word of the driver; "" once it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self) -> None:
        """Let the driver start its query, or stop it."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def resume(self) -> None:
        """Let the driver go on that has stopped itself, with its JVM."""
        (self._root / "resumed").touch()
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        if not self.has_ended():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()


def deliveries(root: Path) -> dict[int, list[Rows]]:
    """Return what was delivered of each batch, by any driver."""
    found: dict[int, list[Rows]] = {}
    for path in sorted((root / "delivered").iterdir()):
        rows = {key: (n, s) for key, (n, s) in json.loads(path.read_text()).items()}
        found.setdefault(int(path.name.split("-")[0]), []).append(rows)
    return found
