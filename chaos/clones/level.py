"""The clones level: one schedule, from its seed to its outcome.

Commands clone a job and its clones, change their state, promote and drop them, and delete what nothing reaches. Most
are killed at the n-th fault point that they reach, wherever that is, and given again sooner or later. After each,
every job must have the state that its own commands have given it. In the end each clone is promoted or dropped: then
no job keeps anything for another one, each verifies, and ``gc`` finds nothing.
"""

import asyncio
import random
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_job_kit import CONTENT, ONE_STORE, make_job, settings

import statekeep as sk
from chaos.backends import Place, places
from chaos.commands import Commands
from chaos.outcome import Outcome
from chaos.servers import Server

LEVEL: Final = "clones"
_FIRST: Final = "counts"
_KILLED: Final = 0.7
_HITS: Final = {"clone": 6, "put": 24, "promote": 24, "drop": 6, "gc": 4}
"""Fault points that a command reaches, and a few more, so that some end unharmed."""
Model = Mapping[str, int]
"""``{user: count}``"""


def points(_: Sequence[str]) -> Sequence[str]:
    """Return where schedules strike: wherever a command comes, so nothing is aimed at."""
    return ()


def run_schedule(
    seed: int, backends: Sequence[str], directory: Path, servers: Mapping[str, Server]
) -> Outcome:
    """Run one schedule and judge it.

    Args:
        seed: Draws everything.
        backends: Where the jobs are backed up; the first one is of blobs.
        directory: Gets all that the schedule leaves, but what is on a server.
        servers: That run.
    """
    run = _Run(seed, directory, places(backends, directory / "places", servers))
    began = time.monotonic()
    try:
        run.go()
    except (RuntimeError, subprocess.SubprocessError, sk.StateBackupError) as exc:
        run.failures.append(f"{type(exc).__name__}: {exc}")
    return Outcome(
        seed=seed,
        level=LEVEL,
        backends=tuple(backends),
        faults={point: ["crash"] * count for point, count in run.struck.items()},
        points=frozenset(run.struck),
        verdicts=dict(run.verdicts),
        kills=sum(run.struck.values()),
        failures=tuple(run.failures),
        seconds=time.monotonic() - began,
        directory=directory,
    )


@dataclass
class _Run:
    """One schedule under way."""

    seed: int
    directory: Path
    backends: Sequence[Place]
    failures: list[str] = field(default_factory=list[str])
    struck: Counter[str] = field(default_factory=Counter[str])
    verdicts: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)  # noqa: S311 - replayable
        self.directory.mkdir(parents=True)
        names = [place.name for place in self.backends]
        self._settings = {**settings(self.directory), "stores.backup.factories": ",".join(names)}
        for place in self.backends:
            self._settings |= place.settings()
        self._commands = Commands(self.directory, self._settings, self.struck)
        self._states: dict[str, Model] = {_FIRST: dict(CONTENT)}
        """Of the jobs that are there, oldest first."""
        self._clones: set[str] = set()
        """Those that may share something."""
        self._names = iter(f"copy-{number}" for number in range(100))

    def go(self) -> None:
        """Run it."""
        asyncio.run(make_job(self.directory, ONE_STORE, **self._settings))
        self._clone()
        for _ in range(self._draw.randint(4, 7)):
            kinds = [self._clone, self._put, self._put, self._put, self._end, self._collect]
            self._draw.choice(kinds)()
            self._check()
        self._judge()

    def _give(self, kind: str, *words: str) -> bool:
        """Give a command, killed once in most cases; return whether it came to its end."""
        is_armed = self._draw.random() < _KILLED
        nth = self._draw.randint(1, _HITS[kind]) if is_armed else 0
        is_whole = self._commands.give(*words, nth=nth) is None
        self.verdicts[f"{kind}: {'whole' if is_whole else 'killed'}"] += 1
        return is_whole

    def _clone(self) -> None:
        origin, name = self._draw.choice(list(self._states)), next(self._names)
        words = ("clone", origin, "--as", name)
        if not self._give("clone", *words):
            if self._draw.random() < 0.5:  # noqa: PLR2004 - one half
                self._drop_half_made(name)
                return
            self._commands.give(*words, nth=0)
        self._states[name] = self._states[origin]
        self._clones.add(name)

    def _drop_half_made(self, name: str) -> None:
        done = self._commands.run("clone", "drop", name, "--yes")
        if done.returncode and "there is no job of that name" not in done.stderr:
            self.failures.append(f"a half made clone is not dropped: {done.stderr[-500:]}")

    def _put(self) -> None:
        name = self._draw.choice(list(self._states))
        user, count = self._draw.choice(sorted(CONTENT)), self._draw.randrange(1000, 1 << 40)
        words = ("state", "put", "count", user, str(count), "--reason", "chaos", "--yes")
        given = (*words, "--set", f"job.name={name}")
        after = {**self._states[name], user: count}
        if not self._give("put", *given) and self._read(name) != after:
            self._commands.give(*given, nth=0)
        self._states[name] = after

    def _end(self) -> None:
        if not self._clones:
            return
        name = self._draw.choice(sorted(self._clones))
        kind = self._draw.choice(["promote", "drop"])
        words = ("clone", kind, name, *(["--yes"] if kind == "drop" else []))
        if self._pins(name):
            done = self._commands.run("clone", "drop", name, "--yes")
            if "a clone uses the backups of the commit" not in done.stderr:
                self.failures.append(f"what a clone uses is not kept: {name} {done.stderr[-500:]}")
            return
        if not self._give(kind, *words):
            done = self._commands.run(*words)
            is_over = "is no clone" in done.stderr or "there is no job" in done.stderr
            if done.returncode and not is_over:
                self.failures.append(f"given again, it does not end: {words} {done.stderr[-500:]}")
        self._clones.discard(name)
        if kind == "drop":
            del self._states[name]

    def _pins(self, name: str) -> Sequence[str]:
        rows = self._commands.json("savepoint", "list", "--set", f"job.name={name}")
        return [row["savepoint"] for row in rows]

    def _collect(self) -> None:
        self._give("gc", "gc", "--set", f"job.name={self._draw.choice(list(self._states))}")

    def _read(self, name: str) -> Model:
        rows = sk.read_state({**self._settings, "job.name": name}, "count").to_pylist()
        return {row["key"]["user"]: row["value"]["n"] for row in rows}

    def _check(self) -> None:
        """Every job has its own state."""
        for name, state in self._states.items():
            if self._read(name) != state:
                self.failures.append(f"the state of {name} is another one")

    def _judge(self) -> None:
        """End the clones, the youngest first, as older ones may be held by it."""
        reset = ("reset", "--yes", "--with-savepoints")
        if self._pins(_FIRST) and self._commands.run(*reset).returncode == 0:
            self.failures.append("a job was reset that has clones")
        for name in [job for job in reversed(self._states) if job in self._clones]:
            if self._draw.random() < 0.5:  # noqa: PLR2004 - one half
                self._commands.give("clone", "promote", name, nth=0)
            else:
                self._commands.give("clone", "drop", name, "--yes", nth=0)
                del self._states[name]
        self._check()
        for name in self._states:
            own = ("--set", f"job.name={name}")
            if self._pins(name):
                self.failures.append(f"{name} keeps something for a clone that is none any more")
            self._commands.json("gc", *own)
            left = self._commands.json("gc", "--dry-run", *own)
            if any(part["names"] for part in left["leftovers"]):
                self.failures.append(f"leftovers after gc: {str(left)[:500]}")
            verified = self._commands.run("verify", *own)
            if verified.returncode != 0:
                self.failures.append(f"{name} is damaged: {verified.stdout[-500:]}")
        self._check()
