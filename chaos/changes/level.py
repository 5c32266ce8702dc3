"""The changes level: one schedule, from its seed to its outcome.

Commands of ``statekeep state`` change a stopped job, one after the other, and some are killed at the n-th fault
point that they reach, wherever that is. After each the state is read from every backend: it must be that of
before or that of after, and after only if the command ended well or had written its commit. A command that left
the state of before is given again and must do it. In the end each backend verifies, no commit that is left has a
key that was erased, and ``gc`` deletes what killed commands left and then finds nothing.
"""

import asyncio
import json
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

LEVEL: Final = "changes"
_MOST_HITS: Final = 60
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
        backends: Where the job is backed up, all of it in each.
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


@dataclass(frozen=True)
class _Change:
    """A command, and what it makes of the state."""

    words: Sequence[str]
    after: Model
    erased: str | None = None


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
        self._state: Model = dict(CONTENT)
        self._before: Model | None = None
        """What an undo gives; None: there is nothing to take back."""
        self._erased: set[str] = set()

    def go(self) -> None:
        """Run it."""
        asyncio.run(make_job(self.directory, ONE_STORE, **self._settings))
        for _ in range(self._draw.randint(4, 7)):
            change = self._draw_change()
            self._make(change)
            is_last = change.erased is None and change.words[0] != "undo"
            self._before = self._state if is_last else None
            self._state = change.after
            if change.erased is not None:
                self._erased.add(change.erased)
            self._erased -= change.after.keys()
        self._judge()

    def _draw_change(self) -> _Change:
        kinds = ["put", "put", "edit", "delete", "erase"]
        kind = self._draw.choice([*kinds, *(["undo"] * 3 if self._before is not None else [])])
        count, some = self._draw.randrange(1000, 1 << 40), self._draw.choice(sorted(self._state))
        if kind == "undo":
            assert self._before is not None  # noqa: S101 - as drawn above
            return _Change(["undo"], self._before)
        if kind == "put":
            user = self._draw.choice([some, f"new-{count}", *sorted(self._erased)])
            return _Change(["put", "count", user, str(count)], {**self._state, user: count})
        if kind == "edit":
            users = self._draw.sample(sorted(self._state), 20)
            file = self.directory / "rows.json"
            file.write_text(
                json.dumps([{"key": {"user": u}, "value": {"n": count}} for u in users])
            )
            after = {**self._state, **dict.fromkeys(users, count)}
            return _Change(["edit", "count", str(file)], after)
        after = {user: n for user, n in self._state.items() if user != some}
        if kind == "delete":
            return _Change(["delete", "count", some], after)
        return _Change(["erase", "--key", some], after, erased=some)

    def _make(self, change: _Change) -> None:
        """Give the command until the state is what it makes; killed once, in most cases."""
        is_armed = self._draw.random() < 0.8  # noqa: PLR2004 - most of them
        point = self._give(change, self._draw.randint(1, _MOST_HITS) if is_armed else 0)
        found = self._read()
        is_done = found == change.after
        if not is_done and found != self._state:
            self.failures.append(f"neither the state of before nor that of after: {change.words}")
        if point is None and not is_done:
            self.failures.append(f"it ended well and did nothing: {change.words}")
        self.verdicts[f"{change.words[0]}: {'whole' if point is None else 'killed'}"] += 1
        # An erasure that was cut off behind its commit has older commits left to release.
        if not is_done or (point is not None and change.erased is not None):
            self._give(change, 0)
            if self._read() != change.after:
                self.failures.append(f"given again, it does not do it: {change.words}")

    def _give(self, change: _Change, nth: int) -> str | None:
        """Give the command; return the fault point that it died at."""
        return self._commands.give("state", *change.words, "--reason", "chaos", "--yes", nth=nth)

    def _read(self, commit: int | None = None) -> Model | None:
        """Return the state, if each backend has the same; None if they differ."""
        found = [
            {
                row["key"]["user"]: row["value"]["n"]
                for row in sk.read_state(
                    self._settings, "count", commit=commit, backend=place.name
                ).to_pylist()
            }
            for place in self.backends
        ]
        return found[0] if all(one == found[0] for one in found) else None

    def _judge(self) -> None:
        verified = self._commands.run("verify")
        if verified.returncode != 0:
            self.failures.append(f"a backend is damaged: {verified.stdout[-500:]}")
        for row in self._commands.json("checkpoints", "list"):
            left = self._erased & (self._read(row["commit"]) or {}).keys()
            if left:
                self.failures.append(f"commit {row['commit']} still has what was erased: {left}")
        self._commands.json("gc")
        left = self._commands.json("gc", "--dry-run")
        if any(part["names"] for part in left["leftovers"]):
            self.failures.append(f"leftovers after gc: {str(left)[:500]}")
        if self._read() != self._state:
            self.failures.append("the state after gc is another one")
