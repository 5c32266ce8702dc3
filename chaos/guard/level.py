"""The guard level: one schedule, from its seed to its outcome.

A query on Spark's own state store reads one file a batch, and a guard copies its location meanwhile. Both
are killed at random moments. In the end the newest copy and an older one are verified and restored, and the
query goes on in each: it must deliver all that comes after that batch, and nothing else. Where the
copies are on a server, that is killed too and started again on its data. Beside each fault the location is
copied plainly too, to count how often such a copy is of no use; `benchmarks.guard_copies` has a real tool
and link for that.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from chaos.backends import KINDS, Place, places
from chaos.guard.forms import FORMS, Delivered, Row, files_read
from chaos.guard.session import WriterSession
from chaos.outcome import Outcome
from chaos.servers import Server
from chaos.spark.class_archive import java_options

LEVEL: Final = "guard"
_POINTS: Final = ("writer.killed", "guard.killed", "both.killed", "query.stopped")
_OF_SERVERS: Final = ("server.killed",)
_KEYS: Final = 6
_WAIT_S: Final = 90.0
_A_FILE_S: Final = 0.005


def points(backends: Sequence[str]) -> Sequence[str]:
    """Return where schedules strike."""
    return (*_POINTS, *(_OF_SERVERS if KINDS[backends[0]].server else ()))


def run_schedule(
    seed: int, backends: Sequence[str], directory: Path, servers: Mapping[str, Server]
) -> Outcome:
    """Run one schedule and judge it.

    Args:
        seed: Draws everything.
        backends: Where the copies go: one kind, of those that have blobs.
        directory: Gets all that the schedule leaves, but what is on a server.
        servers: That run.

    Raises:
        ValueError: The guard copies to no such kind.
    """
    [place] = places(backends, directory / "copies", servers)
    if not place.has_blobs:
        raise ValueError(f"the guard copies to blob backends alone: backend={place.kind}")
    java_options()  # what they make may take a while
    run = _Run(seed, directory, place)
    began = time.monotonic()
    try:
        run.go()
    except (RuntimeError, TimeoutError, subprocess.CalledProcessError) as exc:
        run.failures.append(f"{type(exc).__name__}: {exc}")
    finally:
        run.close()
    return replace(run.outcome(backends), seconds=time.monotonic() - began)


@dataclass
class _Run:
    """One schedule under way."""

    seed: int
    directory: Path
    place: Place
    """Where the copies go."""
    failures: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)  # noqa: S311 - replayable
        self._form = self._draw.choice(sorted(FORMS))
        self._input = self.directory / "in"
        self._input.mkdir(parents=True)
        self._location = self.directory / "first" / "location"
        self._location.parent.mkdir()
        self._files: list[list[Row]] = []
        self._faults: Counter[str] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._session: WriterSession | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._kills = 0

    def go(self) -> None:
        """Run it."""
        self._start_writer()
        self._start_guard()
        for _ in range(self._draw.randint(3, 5)):
            self._add(self._draw.randint(1, 3))
            self._wait(lambda: self._committed() >= 0, "the first batch")
            # A moment of the query's and of the guard's.
            time.sleep(self._draw.random() * 0.8)  # noqa: TID251 - other processes go on
            self._copy_plainly()
            self._strike()
        self._writer().tell({"stop": True})
        self._writer().tell({"finish": str(self._location), "form": self._form})
        self._end_guard(signal.SIGTERM)
        self._command("run", str(self._location), "--once", "--to", self._copies)
        self._judge()

    def close(self) -> None:
        """Leave no process behind."""
        self._end_guard(signal.SIGKILL)
        if self._session is not None:
            self._session.kill()

    def outcome(self, backends: Sequence[str]) -> Outcome:
        """Sum up."""
        return Outcome(
            seed=self.seed,
            level=LEVEL,
            backends=tuple(backends),
            faults={point: ["strike"] * count for point, count in self._faults.items()},
            points=frozenset(self._faults),
            verdicts=dict(self._verdicts),
            kills=self._kills,
            failures=tuple(self.failures),
            directory=self.directory,
        )

    # The two sides

    @property
    def _copies(self) -> str:
        return self.place.settings()[f"backends.{self.place.name}.uri"]

    @property
    def _endpoint(self) -> list[str]:
        """Return the settings with which a server is reached."""
        prefix = f"backends.{self.place.name}.s3."
        given = self.place.settings().items()
        return [
            word
            for key, value in given
            if key.startswith(prefix)
            for word in ("--set", f"blob.store.s3.{key.removeprefix(prefix)}={value}")
        ]

    def _writer(self) -> WriterSession:
        if self._session is None:
            self._session = WriterSession(self.directory / "session", self._input)
        return self._session

    def _start_writer(self) -> None:
        self._writer().tell({"start": str(self._location), "form": self._form})

    def _kill_writer(self) -> None:
        self._writer().kill()
        self._session = None
        self._kills += 1

    def _start_guard(self) -> None:
        line = self._line("run", str(self._location), "--to", self._copies, "--every", "100ms")
        with (self.directory / "guard.log").open("ab") as log:
            self._guard = subprocess.Popen(line, stdout=log, stderr=log)  # noqa: S603 - our own

    def _end_guard(self, how: signal.Signals) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.send_signal(how)
            guard.wait(_WAIT_S)

    def _strike(self) -> None:
        point = self._draw.choice(points([self.place.kind]))
        self._faults[point] += 1
        match point:
            case "writer.killed":
                self._kill_writer()
            case "guard.killed":
                self._end_guard(signal.SIGKILL)
                self._kills += 1
            case "both.killed":
                self._kill_writer()
                self._end_guard(signal.SIGKILL)
                self._kills += 1
            case "server.killed":
                self.place.server.fail()
            case _:
                self._writer().tell({"stop": True})
        if self._guard is None:
            self._start_guard()
        if point not in {"guard.killed", "server.killed"}:
            self._start_writer()

    def _add(self, count: int) -> None:
        """Add input files, each of which becomes a batch."""
        for _ in range(count):
            rows = [
                (f"k{self._draw.randrange(_KEYS)}", self._draw.randrange(100)) for _ in range(5)
            ]
            number = len(self._files)
            partial = self.directory / "partial"
            partial.write_text("\n".join(json.dumps({"key": k, "v": v}) for k, v in rows))
            os.utime(partial, (1_700_000_000 + number,) * 2)
            self._files.append(rows)
            partial.rename(self._input / f"{number:03d}.json")

    def _committed(self) -> int:
        commits = self._location / "commits"
        numbers = [int(p.name) for p in commits.glob("*") if p.name.isdecimal()]
        return max(numbers, default=-1)

    def _wait(self, is_done: Any, what: str) -> None:  # noqa: ANN401 - a call
        deadline = time.monotonic() + _WAIT_S
        while not is_done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come")
            time.sleep(0.05)  # noqa: TID251 - another process is awaited

    # What it came to

    def _copy_plainly(self) -> None:
        """Copy the location as a recursive copy to a bucket does, and look whether Spark could go on.

        It lists all files, then copies one after the other, a few milliseconds each.
        """
        plain = self.directory / "plain"
        for file in sorted(path for path in self._location.rglob("*") if path.is_file()):
            target = plain / file.relative_to(self._location)
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # Spark has deleted it meanwhile
                shutil.copy(file, target)
            time.sleep(_A_FILE_S)  # noqa: TID251 - other processes go on
        found = self._ask("inspect", str(plain), "--deep")
        newest = max(found.json.get("batches", []), default=None)
        is_whole = found.status == 0 and found.json["newest-sound"] == newest
        self._verdicts[f"plain copy: {'whole' if is_whole else 'damaged'}"] += 1
        shutil.rmtree(plain, ignore_errors=True)

    def _judge(self) -> None:
        first = self._delivered(self._location.parent)
        read = files_read(FORMS[self._form], self._files, first)
        if read is None or max(read.values(), default=0) != len(self._files):
            self.failures.append(f"the query itself delivered something else: {read}")
            return
        job = self._ask("run", str(self._location), "--once", "--to", self._copies).json["job"]
        where = ["--set", f"job.name={job}", "--set", f"blob.store.uri={self._copies}"]
        where += ["--set", "stores.backup.factories=blob", *self._endpoint]
        listed = self._ask_about("checkpoints", "list", *where).json
        positions = [row["commit"] for row in listed]
        if not positions:
            self.failures.append("there is no copy")
            return
        shutil.rmtree(self._location)
        older = self._draw.choice(positions[:-1]) if positions[1:] else positions[-1]
        for position in dict.fromkeys([positions[-1], older]):
            self._judge_copy(position, read)
        left = self._ask_about("gc", "--dry-run", *where)
        if left.status != 0 or any(part["names"] for part in left.json["leftovers"]):
            self.failures.append(f"blobs are left that no copy reaches: {str(left.json)[:500]}")

    def _judge_copy(self, position: int, read: Mapping[int, int]) -> None:
        found = self._ask("verify", str(self._location), str(position), "--from", self._copies)
        if found.status != 0:
            self.failures.append(f"copy {position} is damaged: {found.json}")
            return
        new = self.directory / f"restored-{position}" / "location"
        new.parent.mkdir()
        restored = self._command(
            "restore", str(self._location), str(position), "--from", self._copies, "--to", str(new)
        )
        self._writer().tell({"finish": str(new), "form": self._form})
        begun = read[restored["batch"]]
        again = files_read(FORMS[self._form], self._files, self._delivered(new.parent), begun=begun)
        if again is None or max(again.values(), default=begun) != len(self._files):
            self.failures.append(
                f"the query delivered something else after copy {position} of batch {restored['batch']}"
            )
        self._verdicts["copy: goes on"] += 1

    @staticmethod
    def _delivered(parent: Path) -> Mapping[int, Delivered]:
        """Return what each batch delivered; of one that came twice, what came last."""
        path = parent / "delivered"
        rows: dict[int, Delivered] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            batch = json.loads(line)
            rows[batch["batch"]] = Counter(map(tuple, batch["rows"]))
        return rows

    def _line(self, *words: str) -> list[str]:
        settings = ["--set", "checkpoint.retain.commits=3", "--set", "checkpoint.clean.up.ms=0"]
        settings += self._endpoint
        has_settings = words[0] in {"run", "verify", "restore"}
        return [
            *(sys.executable, "-m", "statekeep.cli", "guard", *words),
            *(settings if has_settings else ()),
        ]

    def _ask(self, *words: str) -> "_Answer":
        return _asked([*self._line(*words), "--json"])

    @staticmethod
    def _ask_about(*words: str) -> "_Answer":
        return _asked([sys.executable, "-m", "statekeep.cli", *words, "--json"])

    def _command(self, *words: str) -> Any:  # noqa: ANN401 - JSON
        answer = self._ask(*words)
        if answer.status != 0:
            raise RuntimeError(f"{words[0]} ended with status {answer.status}: {answer.err[:500]}")
        return answer.json


@dataclass(frozen=True)
class _Answer:
    status: int
    json: Any
    err: str


def _asked(line: Sequence[str]) -> _Answer:
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=_WAIT_S)  # noqa: S603
    parsed = json.loads(done.stdout) if done.stdout.strip() else {}
    return _Answer(done.returncode, parsed, done.stderr)
