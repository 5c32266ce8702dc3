"""Runs the command line in this process, against a small job that was really committed."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.cli import app
from statekeep.config.load import load_dict
from statekeep.container.container import Container

INPUT = SystemStreamPartition("kafka", "orders.v1", 0)
TASK = "Partition 0"


def job_settings(directory: Path, retained: int = 20) -> dict[str, str]:
    """Two blob backends side by side; the first one holds the log."""
    return {
        "job.name": "orders",
        "job.logged.store.base.dir": str(directory / "local"),
        "stores.counts.backup.factories": "near,far",
        "backends.near.factory": "blob",
        "backends.near.uri": (directory / "near").as_uri(),
        "backends.far.factory": "blob",
        "backends.far.uri": (directory / "far").as_uri(),
        "checkpoint.retain.commits": str(retained),
        "task.commit.ms": "0",
        "checkpoint.clean.up.ms": "0",
    }


async def commit_numbers(
    directory: Path, numbers: Sequence[int], retained: int = 20, *, name: str = TASK
) -> None:
    """Go on with a task: one commit for each number, which is also its input offset."""
    async with Container(load_dict(job_settings(directory, retained))) as container:
        task = await container.start_task(name, ["counts"])
        for number in numbers:
            task.store("counts").put(b"key-%d" % (number % 5), b"%d" % number)
            commit = await task.commit({INPUT: str(number)}, force=True)
            await commit.wait()


def damage_a_blob(place: Path) -> Path:
    """Flip a bit in the largest blob of a backend."""
    path = max((p for p in place.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


@dataclass
class Result:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document on stdout."""
        return json.loads(self.out)


class CommandLine:
    """``statekeep`` with the settings of one job in a file."""

    def __init__(
        self, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.config = config
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, line: str, *, has_config: bool = True) -> Result:
        """Run one command line; the settings of the job are given unless said otherwise."""
        arguments = shlex.split(line)
        if has_config:
            arguments += ["--config", str(self.config)]
        self._monkeypatch.setattr("sys.argv", ["statekeep", *arguments])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            app.main()
        captured = self._capsys.readouterr()
        status = exit_info.value.code
        assert isinstance(status, int)
        return Result(status, captured.out, captured.err)


def route(key: bytes, partitions: int) -> int:
    """The router of the job: by the number at the end of a key."""
    return int(key.rpartition(b"-")[2]) % partitions


def route_nowhere(key: bytes, partitions: int) -> int:
    """A router that is wrong."""
    return partitions
