"""Judges what a schedule left: from the input, the checkpoint location, the sink and the backups.

It shares no code with the runtime: the logs, the backups and the state in them are read by parsers of
the harness. Besides, the answer of `statekeep.spark.read_state`, the public way to the state, has to
be the same fold over the input.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import statekeep as sk
from chaos.backends import Place
from chaos.evidence.deltas import parse_delta
from chaos.evidence.leftovers import find_leftovers
from chaos.evidence.snapshots import list_blobs, read_snapshot
from chaos.spark.expected import (
    RECENT,
    TIMERS,
    Expected,
    Held,
    Output,
    live,
    rows_between,
    times_of,
)
from chaos.spark.frames import DamagedFrameError, parse_frame
from chaos.spark.leftovers import leftovers
from chaos.spark.log_story import LogStory
from chaos.spark.places import Places
from chaos.spark.plan import Schedule
from chaos.spark.state_bytes import held_in
from chaos.spark.watch import history
from statekeep.errors import StateBackupError

CHECKED = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 14, 16, 18, 20})
"""Invariants that every schedule is checked for; others by what strikes it."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One call of the sink."""

    batch: int
    rows: Sequence[Output]
    offsets: str
    is_committed: bool
    pid: int


@dataclass(frozen=True, slots=True)
class State:
    """What the operators must hold after a batch."""

    held: Sequence[Held]
    now_ms: int
    """The time of the batch: what has ended by then does not count."""


class Verifier:
    """Looks at one schedule's files. `failures` begin with the number of the invariant."""

    def __init__(
        self,
        places: Places,
        backends: Sequence[Place],
        settings: Mapping[str, str],
        schedule: Schedule,
        zombies: frozenset[int],
        *,
        damaged: Collection[str] = (),
    ) -> None:
        """Take where to look.

        Args:
            places: Of the schedule.
            backends: Where the state was backed up to.
            settings: Of the job, for `read_state`.
            schedule: What the job is.
            zombies: Drivers whose last delivery, begun before they were fenced, may come late.
            damaged: Places whose blobs were damaged on purpose, also later on: they may fail to
                give the state back, but must not give another one.
        """
        self._places = places
        self._backends = [place for place in backends if place.has_blobs]
        self._all_backends = backends
        self._settings = settings
        self._source = schedule.source
        self._modes = schedule.modes
        self._partitions = schedule.partitions
        self._zombies = zombies
        self._damaged = damaged
        self._ahead = 1 if settings.get("task.commit.every.batch") == "true" else 0
        self.failures: list[str] = []
        self.checked: set[int] = set()
        """Invariants that there was an occasion to check, besides `CHECKED`."""

    def at_rest(self) -> list[str]:
        """Check, while no process of the job lives, that every retained commit is whole (14).

        What two places hold of one task at one commit is the same, key by key (18).
        """
        story = self._story()
        found: list[str] = []
        contents: dict[tuple[str, str], Mapping[bytes, bytes]] = {}
        for place in self._all_backends:
            for commit in story.retained.values():
                for task, marker in _markers(commit, place.name):
                    if marker in story.bad_markers:
                        continue
                    where = f"commit of batch {commit['batch']}"
                    try:
                        content = place.content(marker)
                    except ValueError as exc:
                        if place.name not in self._damaged:
                            found.append(f"14: {where}: {exc}")
                        continue
                    key = (commit["checkpoint-id"], task)
                    if contents.setdefault(key, content) != content:
                        found.append(f"18: {where}: {task} differs in {place.name}")
        return found

    def at_end(self, told: Collection[str] = (), *, has_killed: bool = False) -> list[str]:
        """Check everything, once the job has ended well.

        Args:
            told: Ids of the commits that drivers took for durable.
            has_killed: See `leftovers`.
        """
        story = self._story()
        for checkpoint in sorted({*told} - story.checkpoint_ids):
            self.failures.append(f"02: the log lacks a commit that was told: {checkpoint}")
        self.failures += story.failures
        if any(len(records) > 1 for records in story.batches.values()):
            self.checked.add(11)
        boundaries = self._boundaries(story)
        newest = self._newest_resolved(boundaries, story)
        outputs, states = self._fold(boundaries)
        self._check_sink(outputs, boundaries)
        self._check_commit(story, newest)
        self._check_state(story, states.get(newest, State([{} for _ in self._modes], 0)))
        self._check_parents(story)
        self._check_bases(story)
        self.failures += self.at_rest()
        self._check_sweep(story)
        left = leftovers(self._places, has_killed=has_killed)
        self.failures += [f"16: left on the host: {path}" for path in left]
        return self.failures

    def _story(self) -> LogStory:
        return LogStory().fold(history(self._places))

    def _boundaries(self, story: LogStory) -> dict[int, str]:
        """Return ``{batch: offsets}`` of what was delivered; they must not differ anywhere (07)."""
        found = {batch: records[-1]["offsets"] for batch, records in story.batches.items()}
        for path in (self._places.checkpoint / "offsets").glob("[0-9]*"):
            batch, text = int(path.name), path.read_text()
            if batch in found and found[batch] != text:
                self.failures.append(f"07: offsets/{batch} differs from the record")
        return found

    def _newest_resolved(self, boundaries: Mapping[int, str], story: LogStory) -> int:
        """Return the batch that the last commit must be of.

        Input that ends leaves no batch open. A query that is stopped in a batch may have recorded
        it, and committed it if it commits every batch, without Spark having taken it for done.
        """
        newest = max(boundaries, default=-1)
        if self._source == "file":
            return newest
        settled = min(newest, self._newest_delivered())
        commit = story.last_commit
        is_ahead = commit is not None and commit["batch"] == settled + 1 <= newest
        return settled + 1 if is_ahead and self._ahead else settled

    def _newest_delivered(self) -> int:
        """Return L."""
        commits = [int(p.name) for p in (self._places.checkpoint / "commits").glob("[0-9]*")]
        return max(commits, default=-1)

    def _fold(
        self, boundaries: Mapping[int, str]
    ) -> tuple[dict[int, Sequence[Output]], dict[int, State]]:
        """Return output and state of each batch."""
        expected = Expected(self._modes)
        outputs: dict[int, Sequence[Output]] = {}
        states: dict[int, State] = {}
        read = 0
        files = _source_files(self._places) if self._source == "file" else {}
        for batch in sorted(boundaries):
            if batch > 0 and batch - 1 not in boundaries:
                self.failures.append(f"22: batch {batch - 1} was never recorded")
                break
            before = boundaries.get(batch - 1)
            rows = rows_between(before, boundaries[batch], self._source, files)
            read += len(rows)
            outputs[batch] = expected.fold(rows, times_of(before, boundaries[batch]))
            states[batch] = State(expected.state, expected.now_ms)
        there = sum(len(path.read_text().splitlines()) for path in self._places.input.iterdir())
        if self._source == "file" and read != there:
            self.failures.append(f"10: {read} rows in recorded batches, {there} in the input")
        return outputs, states

    def _check_sink(
        self,
        outputs: Mapping[int, Sequence[Output]],
        boundaries: Mapping[int, str],
    ) -> None:
        """Every batch is delivered, in order, whole; again only where plain Spark would (06)."""
        newest = -1
        deliveries = self._deliveries()
        last_recorded = max(outputs, default=-1)
        for delivery in deliveries:
            batch = delivery.batch
            if batch not in outputs:
                self.failures.append(f"06: batch {batch} was delivered and never recorded")
                continue
            if sorted(delivery.rows, key=str) != outputs[batch]:
                self.failures.append(f"06: output of batch {batch} differs from the fold")
            if delivery.offsets != boundaries[batch]:
                self.failures.append(f"07: batch {batch} was delivered with other boundaries")
            if delivery.pid in self._zombies and batch <= newest:
                continue  # begun before the driver was fenced, as it may be with plain Spark
            if delivery.is_committed or batch < newest:
                self.failures.append(f"06: batch {batch} was delivered again, newest {newest}")
            if batch > newest + 1:
                self.failures.append(f"06: batch {batch} was delivered after {newest}")
            newest = max(newest, batch)
        # A query without an end is stopped in a batch: recorded, and delivered when it goes on.
        is_open = self._source == "rate" and self._newest_delivered() < last_recorded
        if newest != last_recorded and not (is_open and newest == last_recorded - 1):
            self.failures.append(f"06: deliveries end at {newest}, records at {last_recorded}")

    def _deliveries(self) -> list[Delivery]:
        found: list[Delivery] = []
        for path in sorted(self._places.sink.glob("*.json")):
            document = json.loads(path.read_text())
            rows = [(key, n, total, recent) for key, n, total, recent in document["rows"]]
            found.append(
                Delivery(
                    document["batch"],
                    rows,
                    document["offsets"],
                    document["is-committed"],
                    document["pid"],
                )
            )
        return found

    def _check_commit(self, story: LogStory, newest: int) -> None:
        commit = story.last_commit
        if commit is None or commit["batch"] != newest:
            batch = None if commit is None else commit["batch"]
            self.failures.append(f"03: the last commit is of batch {batch}, not of {newest}")
            return
        delivered = self._newest_delivered()
        if delivered + self._ahead < newest:
            self.failures.append(f"03: C = {newest} > L = {delivered}")
        if len(commit["versions"]) != self._partitions * len(self._modes):
            self.failures.append(f"06: the commit has {len(commit['versions'])} tasks")
        for task, version in commit["versions"].items():
            markers = commit["checkpoints"][task]["state-checkpoint-markers"]
            absent = [place.name for place in self._all_backends if not markers.get(place.name)]
            if version and absent:
                self.failures.append(f"20: {task} has state and no marker of {absent}")

    def _check_state(self, story: LogStory, expected: State) -> None:
        """The state in each backend alone is the fold (10, 18), and `read_state` says so too."""
        for place in self._all_backends:
            for number, held in enumerate(expected.held):
                where = f"state of operator {number + 1} in {place.name}"
                try:
                    there = held_in(
                        place.content(marker)
                        for task, marker in _markers(story.last_commit or {}, place.name)
                        if int(task.split()[-1]) // self._partitions == number
                    )
                except ValueError as exc:
                    if place.name not in self._damaged:
                        self.failures.append(f"10: {where} is not whole: {exc}")
                else:
                    if live(there, expected.now_ms) != held:
                        self.failures.append(f"10: {where} differs from the fold")
                if not held:
                    continue  # a state without any entry has no variables that could be read
                settings = {**self._settings, "stores.restore.factories": place.name}
                try:
                    found = live(_read_state(settings, number, held), expected.now_ms)
                except StateBackupError as exc:
                    if place.name not in self._damaged:
                        self.failures.append(f"10: {where} cannot be read: {exc}")
                else:
                    if found != held:
                        self.failures.append(f"10: read_state: {where} differs from the fold")

    def _check_parents(self, story: LogStory) -> None:
        """A version on disk that a record names was made from one chosen for b - 1 (05)."""
        chosen = _chosen(story)
        # What was restored has no parent: it was not made from another version here.
        committed = {v for c in story.commits.values() for v in c.get("versions", {}).values()}
        for task, version, parent in self._local_versions():
            batch = int(version.split("_")[0])
            if version not in chosen.get((task, batch), set()):
                continue
            if not parent and version in committed:
                continue
            # Some records may have been trimmed unseen.
            before = chosen.get((task, batch - 1), {""} if batch == 0 else set())
            if before and parent not in before:
                self.failures.append(f"05: {task} {version} from {parent}")

    def _local_versions(self) -> Iterator[tuple[str, str, str]]:
        """Yield (task, version, parent) of every image and change set on disk."""
        tasks = "*/main/Partition_*"
        for path in self._places.local.glob(f"{tasks}/*_*/SEAL-MANIFEST"):
            try:
                manifest = parse_frame(path.read_bytes(), str(path))
            except DamagedFrameError as exc:
                self.failures.append(f"05: {exc}")
            else:
                yield manifest["task"], manifest["version"], manifest["parent"]
        for path in self._places.local.glob(f"{tasks}/*_*.changes/*.delta"):
            try:
                header = parse_delta(path.read_bytes()).header
            except ValueError as exc:
                self.failures.append(f"05: {exc}: {path}")
            else:
                task = path.parents[1].name.replace("_", " ")
                yield task, header["version"], header.get("parent", "")

    def _check_bases(self, story: LogStory) -> None:
        """Every increment builds on a marker that some commit holds (13)."""
        for place in self._backends:
            files = place.files()
            known = {m for c in story.commits.values() for _, m in _markers(c, place.name)}
            for commit in story.retained.values():
                for _, marker in _markers(commit, place.name):
                    if marker in story.bad_markers:
                        continue
                    try:
                        base = read_snapshot(files, marker).base
                    except ValueError:
                        continue  # told as 14
                    if base is not None:
                        self.checked.add(13)
                    if base is not None and base not in known:
                        self.failures.append(f"13: {marker} builds on {base}")

    def _check_sweep(self, story: LogStory) -> None:
        """After the last sweep a store holds exactly what retained commits reach (16)."""
        for place in self._backends:
            if place.name in self._damaged:
                continue
            files = place.files()
            reached: set[str] = set()
            for commit in story.retained.values():
                for _, marker in _markers(commit, place.name):
                    try:
                        reached |= read_snapshot(files, marker).blobs
                    except ValueError:
                        continue  # told as 14
            there = set(list_blobs(files, self._settings["job.name"]))
            if there != reached:
                surplus = sorted(there - reached)[:3]
                self.failures.append(f"16: {len(there - reached)} blobs too many: {surplus}")
        attempts = {(c["attempt-epoch"], c["attempt"]) for c in story.retained.values()}
        for place in self._all_backends:
            if place.form != "kafka":
                job = self._settings["job.name"]
                left = find_leftovers(place.files(), job, lambda _: attempts)
                self.failures += [f"16: {place.name} still holds {what}" for what in left]


def _read_state(settings: Mapping[str, str], number: int, held: Held) -> Held:
    """Return what `read_state` says of an operator, of the variables that it should hold."""

    def values(struct: Mapping[str, Any] | None) -> tuple[Any, ...]:
        return () if struct is None else tuple(struct.values())

    found: Held = {}
    for name in {entry[0] for entry in held}:
        table = sk.read_state(
            settings,
            None if name == TIMERS else name,
            timers=name == TIMERS,
            operator="main" if number == 0 else f"operator-{number + 1}",
        )
        for row in table.to_pylist():
            end = (row["expiration_timestamp_ms"],) if name in {TIMERS, RECENT} else ()
            (place,) = values(row.get("user_map_key")) or (end if name == TIMERS else (0,))
            value = values(row.get("value") or row.get("user_map_value"))
            found[name, *values(row["key"]), place] = value + (end if name == RECENT else ())
    return found


def _markers(commit: Mapping[str, Any], backend: str) -> set[tuple[str, str]]:
    """Return (task, marker) of a commit's backups in one place."""
    return {
        (task, marker)
        for task, checkpoint in commit.get("checkpoints", {}).items()
        for marker in checkpoint["state-checkpoint-markers"].get(backend, {}).values()
    }


def _chosen(story: LogStory) -> dict[tuple[str, int], set[str]]:
    """Return which versions were ever chosen for each task and batch."""
    found: dict[tuple[str, int], set[str]] = {}
    for batch, records in story.batches.items():
        for record in records:
            for task, done in record.get("tasks", {}).items():
                found.setdefault((task, batch), set()).add(done["version"])
    for commit in story.commits.values():
        for task, version in commit.get("versions", {}).items():
            found.setdefault((task, commit["batch"]), set()).add(version)
    return found


def _source_files(places: Places) -> dict[int, list[Path]]:
    """Return ``{log offset: files}`` of the file source's own log."""
    found: dict[int, list[Path]] = {}
    directory = places.checkpoint / "sources" / "0"
    for path in directory.glob("[0-9]*"):
        for line in path.read_text().splitlines()[1:]:
            entry = json.loads(line)
            file = places.input / Path(entry["path"]).name
            files = found.setdefault(int(entry["batchId"]), [])
            if file not in files:
                files.append(file)
    return found
