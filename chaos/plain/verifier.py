"""Judges a job by its input, its journals, and the bytes that it left.

Nothing of the runtime is used here: the expected state is computed anew from the input, and logs
and blobs are read by parsers of their own.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.backends import Place
from chaos.evidence.leftovers import find_leftovers
from chaos.evidence.snapshots import list_blobs, read_snapshot
from chaos.plain.log_evidence import Commit, TaskHistory, read_history
from chaos.plain.records import changes_of, shown
from chaos.plain.schedule import Schedule

Event = Mapping[str, Any]


class Verifier:
    """Checks the invariants of one schedule, each time that nothing runs.

    Attributes:
        failures: What was found wrong, each once.
        checked: Numbers of the invariants that were put to the test.
    """

    def __init__(self, schedule: Schedule, places: Sequence[Place], job: str) -> None:
        self._schedule = schedule
        self._places = places
        self._job = job
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        self.failures: list[str] = []
        self.checked: set[int] = set()
        self.is_victim_damaged = False

    def audit(self, journals: Sequence[Sequence[Event]]) -> None:
        """Check everything that has to hold at any time.

        Args:
            journals: Of all the processes so far.
        """
        histories = self._read_histories()
        events = [event for journal in journals for event in journal]
        for history in histories.values():
            for number, text in history.problems:
                self._fail(number, text)
            self.checked |= {1, 2, 12}
            self._check_commits_were_begun(history, events)
            for commit in history.retained:
                self._check_markers(history, commit)
        for event in events:
            if event["event"] == "started":
                self._check_start(histories[event["task"]], event)
            elif event["event"] == "acknowledged":
                self._check_acknowledged(histories[event["task"]], event)
        self._check_deletions(histories)

    def check_swept(self) -> None:
        """Check that the places hold what retained commits reach.

        Blobs: exactly that. Uploads of other forms build on each other, so that older ones may
        stay; but nothing is left of an attempt that never completed. Nor is what `find_leftovers`
        tells.
        """
        histories = self._read_histories()
        commits = [commit for history in histories.values() for commit in history.retained]
        for place in self._places:
            if self._is_damaged(place) or place.form == "kafka":
                continue
            reached = frozenset[str]()
            if place.has_blobs:
                reached = frozenset[str]().union(*(_reached_by(place, c) for c in commits))
            for name, attempt in sorted(list_blobs(place.files(), self._job).items()):
                is_needed = name in reached
                if not place.has_blobs:
                    is_needed = attempt not in _history_of(name, histories).aborted
                if not is_needed and not self._is_left_by_optional(place, attempt, histories):
                    self._fail(16, f"{place.name} still holds {name}")
            left = find_leftovers(
                place.files(),
                self._job,
                lambda name: {c.attempt for c in _history_of(name, histories).retained},
            )
            for what in left:
                self._fail(16, f"{place.name} still holds {what}")
            self.checked.add(16)

    def check_end(self, journal: Sequence[Event], local: Path) -> None:
        """Check a process that nothing stood in the way of: it has got to the end of the input.

        It may refuse to start, and say why, if every place was damaged and the disk is lost. What
        it leaves on its local disk is sealed versions and nothing else.
        """
        self.checked.add(10)
        errors = [e for e in journal if e["event"] in {"failed", "fenced", "commit-failed"}]
        if self._are_all_damaged() and any("RestoreFailedError" in str(e) for e in errors):
            return
        offsets = {e["task"]: e["offset"] for e in journal if e["event"] == "acknowledged"}
        for task in self._schedule.tasks:
            if offsets.get(task) != self._schedule.records:
                self._fail(10, f"{task} did not get to the end of its input: {errors}")
        for path in sorted(local.rglob("work-*")):
            self._fail(16, f"left on the local disk: {path}")

    def check_restored(self, place: Place, journal: Sequence[Event]) -> None:
        """Check a start from one place alone, without a local disk."""
        started = {e["task"]: e for e in journal if e["event"] == "started"}
        for task in self._schedule.tasks:
            event = started.get(task)
            if event is None:
                if not self._is_damaged(place):
                    errors = [e for e in journal if e["event"] == "failed"]
                    self._fail(18, f"{task} cannot be restored from {place.name}: {errors}")
            elif event["offset"] != self._schedule.records and not self._is_damaged(place):
                self._fail(18, f"{task} of {place.name} is at {event['offset']}")
            elif set(event["sources"].values()) - {place.name}:
                self._fail(18, f"{task} was not restored from {place.name}: {event['sources']}")
        self.checked |= {18, 20}

    def expected_content(self, task: str, offset: int) -> Mapping[str, Mapping[str, str]]:
        """Fold the input of a task up to and including one record."""
        stores = tuple(self._schedule.stores)
        totals: dict[str, dict[str, int]] = {name: {} for name in stores}
        for number in range(offset + 1):
            for change in changes_of(self._schedule.seed, task, number, stores):
                content, key = totals[change.store], change.key.decode()
                if change.addend is None:
                    content.pop(key, None)
                else:
                    content[key] = content.get(key, 0) + change.addend
        found = {s: {k: str(v) for k, v in content.items()} for s, content in totals.items()}
        large = self._schedule.large
        if large is not None and large.task == task and large.number <= offset:
            found[large.store][large.key.decode()] = shown(large.value)
        return found

    def _read_histories(self) -> Mapping[str, TaskHistory]:
        return {
            task: read_history(self._places[0].log(f"{self._job}/main/{_escaped(task)}"), task)
            for task in self._schedule.tasks
        }

    def _check_commits_were_begun(self, history: TaskHistory, events: Sequence[Event]) -> None:
        begun = {e["offset"] for e in events if e["event"] == "begun" and e["task"] == history.task}
        for commit in history.commits:
            if commit.version and commit.offset not in begun:
                self._fail(10, f"{history.task} committed {commit.offset}, which was not asked for")

    def _check_start(self, history: TaskHistory, event: Event) -> None:
        """The state of a start is the fold of its offsets, and they are the newest commit's.

        An older commit is right only if what every place that may be read holds of the newest one
        is missing or damaged, and was said to be.
        """
        task, offset = event["task"], event["offset"]
        if event["content"] != self.expected_content(task, offset):
            self._fail(10, f"{task} started at {offset} with another state: {event}")
        self.checked |= {10, 20}
        base = history.sessions.get(event["epoch"])
        if base is None:
            if not history.floor:
                self._fail(9, f"{task} started in epoch {event['epoch']}, which has no base")
            return
        readable = {event["restore_from"]} if event["restore_from"] else set(base.markers)
        is_reported = readable <= set(event["damaged_sources"])
        if offset != base.offset and (not is_reported or offset > base.offset):
            self._fail(9, f"{task} started at {offset}, the newest commit was at {base.offset}")
        self.checked |= {8, 9}

    def _check_acknowledged(self, history: TaskHistory, event: Event) -> None:
        """What the job was told to be durable stands in the log, under that very offset."""
        found = [c for c in history.commits if c.checkpoint_id == event["checkpoint"]]
        offsets = [commit.offset for commit in found]
        if event["offset"] not in offsets and not history.floor:
            self._fail(2, f"{event['task']} took {event} for durable, the log has {offsets}")

    def _check_markers(self, history: TaskHistory, commit: Commit) -> None:
        for place in self._places:
            markers = commit.markers.get(place.name, {})
            if set(markers) != set(commit.stores) and place.name != self._schedule.optional:
                self._fail(20, f"{history.task}: the commit at {commit.position} lacks markers")
            if self._is_damaged(place):
                continue
            for store, marker in markers.items():
                if place.has_blobs:
                    self._check_snapshot(history, commit, place, store, marker)
                self._check_content(history, commit, place, store, marker)
        self.checked |= {13, 14}

    def _check_content(
        self, history: TaskHistory, commit: Commit, place: Place, store: str, marker: str
    ) -> None:
        """What is backed up is the fold of the commit's offset (14, 18, 19)."""
        try:
            found = place.content(marker)
        except ValueError as exc:
            self._fail(14, f"{history.task}: the commit at {commit.position}: {exc}")
            return
        expected = self.expected_content(history.task, commit.offset)[store]
        if {key.decode(): shown(value) for key, value in found.items()} != expected:
            self._fail(18, f"{history.task}: {place.name} holds another state of {store}: {marker}")
        self.checked |= {18, 19} if place.form == "kafka" else {18}

    def _check_snapshot(
        self, history: TaskHistory, commit: Commit, place: Place, store: str, marker: str
    ) -> None:
        try:
            snapshot = read_snapshot(place.files(), marker)
        except ValueError as exc:
            self._fail(14, f"{history.task}: the commit at {commit.position}: {exc}")
            return
        if snapshot.version != commit.version:
            self._fail(14, f"{history.task}: {marker} is of version {snapshot.version}")
        if snapshot.base is not None:
            base = commit.base
            is_known = base is not None or not history.floor
            known = None if base is None else base.markers.get(place.name, {}).get(store)
            # A task that had not changed has the snapshot of the commit before.
            if is_known and known not in {snapshot.base, marker}:
                self._fail(13, f"{history.task}: {marker} builds on {snapshot.base}, not {known}")
        own = f"/main/{_escaped(history.task)}/{_escaped(store)}/"
        foreign = [blob for blob in snapshot.blobs if own not in blob]
        if foreign:
            self._fail(13, f"{history.task}: {marker} names blobs of others: {foreign}")

    def _check_deletions(self, histories: Mapping[str, TaskHistory]) -> None:
        """A blob that is gone belongs to an attempt that has ended, by commit or for good.

        What a retained commit reaches is not among them: that is invariant 14.
        """
        for place in self._places:
            if place.form == "kafka":
                continue
            there = list_blobs(place.files(), self._job)
            gone = [key for key in self._seen if key[0] == place.name and key[1] not in there]
            for key in gone:
                history = _history_of(key[1], histories)
                attempt = self._seen.pop(key)
                if attempt not in history.ended and not history.floor:
                    self._fail(15, f"{key[1]} is gone, but its attempt has not ended")
            self._seen.update({(place.name, blob): made for blob, made in there.items()})
            self.checked.add(15)

    def _is_left_by_optional(
        self, place: Place, attempt: tuple[int, int], histories: Mapping[str, TaskHistory]
    ) -> bool:
        """Whether an optional backend has failed in that commit: what it left goes with it."""
        return place.name == self._schedule.optional and any(
            commit.attempt == attempt and place.name not in commit.markers
            for history in histories.values()
            for commit in history.retained
        )

    def _is_damaged(self, place: Place) -> bool:
        return self.is_victim_damaged and place.name == self._schedule.victim

    def _are_all_damaged(self) -> bool:
        whole = [place for place in self._places if not self._is_damaged(place)]
        return all(place.name == self._schedule.optional for place in whole)

    def _fail(self, invariant: int, text: str) -> None:
        failure = f"invariant {invariant:02d}: {text}"
        if failure not in self.failures:
            self.failures.append(failure)


def _escaped(name: str) -> str:
    """Return a name as it stands in paths, as far as the names of these jobs need it."""
    return name.replace(" ", "_")


def _history_of(name: str, histories: Mapping[str, TaskHistory]) -> TaskHistory:
    return next(h for task, h in histories.items() if f"/main/{_escaped(task)}/" in name)


def _reached_by(place: Place, commit: Commit) -> frozenset[str]:
    """Return the blobs that a commit needs; what is not whole was told of before."""
    reached: set[str] = set()
    for marker in commit.markers.get(place.name, {}).values():
        with suppress(ValueError):
            reached |= read_snapshot(place.files(), marker).blobs
    return frozenset(reached)
