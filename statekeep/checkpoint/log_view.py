"""What the records of a job log amount to, folded in order of position."""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, TypeVar

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    VersionId,
)
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BadMarkerRecord,
    BaseRecord,
    BatchRecord,
    CommitRecord,
    EpochRecord,
    KeptRecord,
    MovedRecord,
    PinRecord,
    Record,
    ReleaseRecord,
    UnpinRecord,
)
from statekeep.checkpoint.serde import decode_checkpoint_v2
from statekeep.errors import CheckpointCorruptError

T = TypeVar("T")

_COMMITS_TO_REPLAY_FROM: Final = 16
"""The newest commits, whose records and batches stay in memory; many more than have to be passed over
for damage. Retention by age keeps thousands, with a line for each task in each batch since the oldest."""

BadMarker = tuple[str, str, str, str]
"""(backend, task, store, marker)."""


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """What stays in memory of every commit: its record has a checkpoint for each task."""

    attempt: tuple[int, int]
    """(epoch, attempt)."""
    batch: int
    checkpoint_id: str
    query_id: str | None
    """None in plain Python, and of a commit with which a new query is to begin."""
    is_change: bool = False
    """Whether it holds other state than its batch left."""

    @classmethod
    def of(cls, record: CommitRecord) -> "CommitEntry":
        """Return the entry of a record."""
        query = record.query
        return cls(
            (record.attempt_epoch, record.attempt),
            record.batch,
            record.checkpoint_id,
            None if query is None else query.query_id,
            record.change is not None,
        )


@dataclass
class LogView:
    """The state of a job according to its log.

    Owned by one `LogReader`, which folds every record that is read or appended; all others
    read it on the same event loop. The same records always give the same view, so a record that
    contradicts one before it has no effect, rather than one that depends on the reader.
    """

    next_position: int = 0
    """Where the next record goes: one past the last one seen."""
    epoch: int = 0
    """The newest epoch in the log; 0 before the first."""
    commits: dict[int, CommitEntry] = field(default_factory=dict[int, CommitEntry])
    """Commits not released, by position, in order: the last one is current."""
    commit_records: dict[int, CommitRecord] = field(default_factory=dict[int, CommitRecord])
    """The records of the newest of `commits`. `LogReader.read_commits` reads the others."""
    released: dict[int, CommitEntry] = field(default_factory=dict[int, CommitEntry])
    """Released commits that the log still holds and whose clean-up may not be done."""
    newest_released: int = -1
    """Position of the newest commit that was ever released; -1 before the first."""
    tasks: set[str] = field(default_factory=set[str])
    """Every task that a commit or an attempt has named: those that are no more may have left backups."""
    open_attempts: dict[tuple[int, int], AttemptRecord] = field(
        default_factory=dict[tuple[int, int], AttemptRecord]
    )
    """Attempts neither committed nor aborted, by (epoch, attempt)."""
    attempt_positions: dict[tuple[int, int], int] = field(
        default_factory=dict[tuple[int, int], int]
    )
    """Position of the record of each attempt in `open_attempts`."""
    abort_positions: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Position of the record that aborted an attempt, for each in `aborted_attempts`."""
    orphans: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Those of `aborted_attempts` whose uploads may not be deleted yet."""
    batches: dict[int, BatchRecord] = field(default_factory=dict[int, BatchRecord])
    """Batches of the current query that count and that a replay from a commit of
    `comparable_commits` may need. The log holds more: see `lowest_needed`."""
    batch_positions: dict[int, int] = field(default_factory=dict[int, int])
    """Position of the record of each batch in `batches`."""
    unreadable_batches: set[int] = field(default_factory=set[int])
    """Positions of batch records that are damaged; the batch of one is unknown."""
    overtaken_batches: dict[int, str] = field(default_factory=dict[int, str])
    """Batches above the head of a base record that were recorded before it, with their offsets.

    Versions in their records count for nothing; but the older driver may have ended one in the query's
    own location after the newer one had looked there.
    """
    done_batch: int = -1
    """The newest batch that a driver of the query has found done in its location; -1 before any."""
    has_begun: bool = False
    """Whether a base record was read: a driver has gone on from a commit of the log."""
    query_id: str | None = None
    """The query whose batch numbers `batches` holds; None before the first."""
    stores: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    """``{operator: stores}`` of all state since the last commit: of the newest base record or commit."""
    pins: dict[str, int] = field(default_factory=dict[str, int])
    """Positions of pinned commits, by name."""
    pin_expiries: dict[str, int] = field(default_factory=dict[str, int])
    """When those of `pins` that do not hold for good may be unpinned, in wall-clock milliseconds."""
    clones: dict[str, str] = field(default_factory=dict[str, str])
    """``{name: job}`` of those of `pins` that clones hold."""
    bad_markers: set[BadMarker] = field(default_factory=set[BadMarker])
    """Those that must not be used again."""
    kept_at: dict[int, int] = field(default_factory=dict[int, int])
    """Positions of the newest `KeptRecord` of commits, by that of the commit."""
    moved_to: str | None = None
    """The backend in which the log goes on; None: it goes on here."""
    began_at: int = field(init=False)
    """Position of the first record that was read: a record before it is known by a `KeptRecord` only."""

    def __post_init__(self) -> None:
        self.began_at = self.next_position

    @property
    def last_commit(self) -> CommitRecord | None:
        """The current commit; None in a log that has none yet."""
        return self.commit_records.get(self.last_commit_position)

    @property
    def last_commit_position(self) -> int:
        """Position of the current commit; -1 if there is none.

        One that is known by a `KeptRecord` only is never current: a newer one stood before that.
        """
        newest = next(reversed(self.commits), -1)
        return newest if newest >= self.began_at else -1

    @property
    def aborted_attempts(self) -> AbstractSet[tuple[int, int]]:
        """Attempts that will never complete, by (epoch, attempt)."""
        return self.abort_positions.keys()

    @property
    def comparable_commits(self) -> list[CommitRecord]:
        """The commits that a task may go back to by itself, oldest first: their batches compare.

        They are of the current one's query; one with which a new query is to begin compares with no
        other. A commit that only its pin keeps, or its age, is not among them: the batches since
        then are many. A new job can be made from it.
        """
        commits = [self.commit_records[position] for position in self._replayable()]
        if commits and commits[-1].query is None:
            return commits[-1:]
        query_id = self.commits[self.last_commit_position].query_id if commits else None
        return [c for c in commits if CommitEntry.of(c).query_id == query_id]

    @property
    def trusted_batches(self) -> dict[int, BatchRecord]:
        """Those of `batches` whose versions may be used.

        A damaged record may be of any batch: it may supersede every record that stands before it.
        The boundaries in those are good all the same, as a batch never changes them.
        """
        damaged = max(self.unreadable_batches, default=-1)
        # Copies: the start of a query reads them while a clean-up may already drop some.
        batches, positions = dict(self.batches), dict(self.batch_positions)
        return {b: r for b, r in batches.items() if positions.get(b, -1) > damaged}

    @property
    def newest_possible_batch(self) -> int:
        """The newest batch that may have been delivered, if only the query's location says so.

        Each damaged record may be of one more batch than is known; -1 if there can be none.
        """
        committed = -1 if self.last_commit is None else self.last_commit.batch
        known = max([*self.batches, committed])
        return max([known + len(self.unreadable_batches), *self.overtaken_batches])

    @property
    def newest_done_batch(self) -> int:
        """The newest batch that Spark has surely taken for done, in the query's location.

        A batch is begun only after that.
        """
        committed = -1 if self.last_commit is None else self.last_commit.batch
        begun = max([*self.batches, *self.overtaken_batches, committed])
        return max(begun - 1, self.done_batch)

    @property
    def is_half_made(self) -> bool:
        """Whether a tool began to make the job from another one's state, and did not come to its end.

        A log of a job's own begins with the empty commit, before any attempt.
        """
        return not self.commits and bool(self.open_attempts or self.aborted_attempts)

    def known_offsets(self, batch: int) -> str | None:
        """Return the boundaries of a batch, as Spark wrote them; None if unknown."""
        if batch in self.batches:
            return self.batches[batch].offsets
        if batch in self.overtaken_batches:
            return self.overtaken_batches[batch]
        queries = {c.batch: c.query for c in self.comparable_commits}
        query = queries.get(batch)
        return None if query is None else query.offsets

    @property
    def lowest_needed(self) -> int:
        """The lowest position that a recovery from any retained commit reads; 0 without a commit.

        The log may be trimmed up to here, once what released commits and closed attempts left
        behind is deleted. It may lie below the oldest commit: batches go on during a commit.
        """
        if not self.commits:
            return 0
        return min(self._needed_by(self.commits))

    def pinned_behind(self, distance: int) -> list[int]:
        """Return the commits that only a pin keeps, and but for which the log were so much shorter."""
        pinned = [p for p in set(self.pins.values()) if p <= self.newest_released]
        others = self.commits.keys() - pinned
        floor = min(self._needed_by(others)) if others else 0
        return sorted(p for p in pinned if floor - self.kept_at.get(p, p) > distance)

    def pins_of(self, position: int) -> dict[str, int]:
        """Return when each pin of a commit expires, by its name; 0: never."""
        return {
            name: self.pin_expiries.get(name, 0)
            for name, pinned in self.pins.items()
            if pinned == position
        }

    def clones_of(self, position: int) -> dict[str, str]:
        """Return which clones hold a commit, by the names of their pins."""
        return {n: clone for n, clone in self.clones.items() if self.pins[n] == position}

    def fold(self, position: int, record: Record) -> None:
        """Take in the record at ``position``, which must be the next one.

        Raises:
            CheckpointCorruptError: The record is of an older epoch than one before it: the store
                does not create atomically, or the log was put together by hand.
        """
        if record.epoch < self.epoch or (
            isinstance(record, EpochRecord) and record.epoch == self.epoch
        ):
            msg = (
                f"a fenced writer's record is in the job log: position={position} "
                f"record_epoch={record.epoch} log_epoch={self.epoch}"
            )
            raise CheckpointCorruptError(msg)
        self._advance(position)
        # Of every record: in a trimmed log the epoch record may be below the floor.
        self.epoch = record.epoch
        match record:
            case EpochRecord():
                if record.is_reset:
                    self._forget_all()
            case BaseRecord():
                self._fold_base(position, record)
            case BatchRecord():
                self._fold_batch(position, record)
            case AttemptRecord() | CommitRecord() | AbortRecord():
                self._fold_attempt(position, record)
            case ReleaseRecord():
                self._fold_release(record)
            case PinRecord():
                self._fold_pin(record)
            case UnpinRecord():
                self._fold_unpin(record)
            case KeptRecord():
                self._fold_kept(position, record)
            case BadMarkerRecord():
                self.bad_markers.add((record.backend, record.task, record.store, record.marker))
            case MovedRecord():
                self.moved_to = record.backend

    def fold_unreadable_batch(self, position: int) -> None:
        """Take in a batch record that is damaged, which must be the next one."""
        self._advance(position)
        self.unreadable_batches.add(position)

    def forget_below(self, floor: int) -> None:
        """Drop what only matters until the log is trimmed to ``floor``."""
        for position in [position for position in self.released if position < floor]:
            del self.released[position]
        for attempt in [attempt for attempt, p in self.abort_positions.items() if p < floor]:
            del self.abort_positions[attempt]
            self.orphans.discard(attempt)
        self.unreadable_batches = {p for p in self.unreadable_batches if p >= floor}

    def forget_collected(self, attempts: Collection[tuple[int, int]]) -> None:
        """Drop the released commits and the orphans of attempts whose clean-up is done.

        A pin may keep the log from being trimmed for long: without this, each of them since then would
        stay in memory and be cleaned up after each later commit.
        """
        for position, commit in list(self.released.items()):
            if commit.attempt in attempts:
                del self.released[position]
        self.orphans.difference_update(attempts)

    def usable_checkpoint(self, commit: CommitRecord, task: str) -> CheckpointV2 | None:
        """Return a task's checkpoint in a commit without bad markers: see the function."""
        return usable_checkpoint(commit, task, self.bad_markers)

    def is_committed(self, epoch: int, attempt: int) -> bool:
        """Return whether the log holds the commit record of an attempt."""
        key = (epoch, attempt)
        return any(
            commit.attempt == key
            for commits in (self.commits, self.released)
            for commit in commits.values()
        )

    def _forget_all(self) -> None:
        """Become what a reader gets who finds the log trimmed up to the record just read."""
        vars(self).update(vars(LogView(next_position=self.next_position, epoch=self.epoch)))

    def _advance(self, position: int) -> None:
        if position != self.next_position:
            msg = f"not the next record: position={position} next_position={self.next_position}"
            raise ValueError(msg)
        self.next_position = position + 1

    def _fold_attempt(
        self, position: int, record: AttemptRecord | CommitRecord | AbortRecord
    ) -> None:
        if isinstance(record, AttemptRecord):
            self.open_attempts[record.epoch, record.attempt] = record
            self.attempt_positions[record.epoch, record.attempt] = position
            self.tasks.update(record.versions)
            return
        key = (record.attempt_epoch, record.attempt)
        if isinstance(record, AbortRecord):
            # An append of unknown outcome can turn out to have landed after all: what is committed
            # stays committed, what is aborted stays aborted, by whichever record comes first.
            if not self.is_committed(*key):
                self._close(key, position)
        elif key not in self.aborted_attempts:
            self._drop_open(key)
            if not _is_of_same_batch(self.last_commit, record):
                self.stores = record.identity.stores
            self.commits[position] = CommitEntry.of(record)
            self.commit_records[position] = record
            self._forget_records()
            self.tasks.update(record.versions)
            if record.query is not None:
                self._switch_query(record.query.query_id)
            if record.change is not None:  # the versions in these records are of other state
                self._drop_batches([b for b in self.batches if b <= record.batch])
            self._forget_batches()

    def _fold_base(self, position: int, record: BaseRecord) -> None:
        for key in [key for key in self.open_attempts if key[0] < record.epoch]:
            self._close(key, position)
        self.has_begun = True
        self.stores = record.stores or self.stores
        self._switch_query(record.query_id)
        overtaken = {b: found.offsets for b, found in self.batches.items() if b > record.head}
        self._drop_batches(list(overtaken))
        self.overtaken_batches.update(overtaken)
        committed = -1 if self.last_commit is None else self.last_commit.batch
        if record.head > committed:  # else the head may be the commit, made before Spark's own
            self.done_batch = max(self.done_batch, record.head)

    def _fold_batch(self, position: int, record: BatchRecord) -> None:
        self._switch_query(record.query_id)
        self.batches[record.batch] = record
        self.batch_positions[record.batch] = position
        self.overtaken_batches.pop(record.batch, None)

    def _fold_pin(self, record: PinRecord) -> None:
        if record.position not in self.commits:
            return
        if record.name in self.clones:
            return  # it holds for good
        self._pin(record.name, record.position, record.expires_ms, record.clone)

    def _fold_unpin(self, record: UnpinRecord) -> None:
        if record.clone == self.clones.get(record.name, ""):
            self.pins.pop(record.name, None)
            self.pin_expiries.pop(record.name, None)
            self.clones.pop(record.name, None)

    def _pin(self, name: str, position: int, expires_ms: int, clone: str) -> None:
        self.pins[name] = position
        self.pin_expiries.pop(name, None)
        if expires_ms:
            self.pin_expiries[name] = expires_ms
        if clone:
            self.clones[name] = clone

    def _fold_kept(self, position: int, record: KeptRecord) -> None:
        kept = record.position
        if kept in self.commits:
            self.kept_at[kept] = position
        elif kept < self.began_at:
            _insert(self.commits, kept, CommitEntry.of(record.commit))
            _insert(self.commit_records, kept, record.commit)
            self._forget_records()
            self.kept_at[kept] = position
            self.tasks.update(record.commit.versions)
            self.newest_released = max(self.newest_released, kept)
            self.bad_markers.update(record.bad_markers)
            for name, expires_ms in record.pins.items():
                self._pin(name, kept, expires_ms, record.clones.get(name, ""))

    def _fold_release(self, record: ReleaseRecord) -> None:
        kept = {self.last_commit_position, *self.pins.values()}
        for position in record.positions:
            if position in self.commits and position not in kept:
                self.released[position] = self.commits.pop(position)
                self.commit_records.pop(position, None)
                self.kept_at.pop(position, None)
                self.newest_released = max(self.newest_released, position)
        self._forget_batches()

    def _needed_by(self, commits: Iterable[int]) -> list[int]:
        """Return the positions that recoveries from some commits read, and open attempts."""
        oldest = self._oldest_to_replay()
        return [
            *(self.kept_at.get(position, position) for position in commits),
            *self.attempt_positions.values(),
            *(self.batch_positions[batch] for batch in self.batches if batch > oldest),
        ]

    def _forget_records(self) -> None:
        for old in list(self.commit_records)[:-_COMMITS_TO_REPLAY_FROM]:
            del self.commit_records[old]

    def _forget_batches(self) -> None:
        """Drop the batches that no replay begins before."""
        oldest = self._oldest_to_replay()
        self._drop_batches([batch for batch in self.batches if batch < oldest])
        for batch in [batch for batch in self.overtaken_batches if batch <= oldest]:
            del self.overtaken_batches[batch]

    def _replayable(self) -> list[int]:
        """Return the positions of the commits that a task may go back to by itself, oldest first.

        What is older than a released commit is there for its pin. What is older than a change of the
        state lacks that change, and a replay would not make it again.
        """
        found: list[int] = []
        for position in islice(reversed(self.commits), _COMMITS_TO_REPLAY_FROM):
            if position <= self.newest_released:
                break
            found.append(position)
            if self.commits[position].is_change:
                break
        return found[::-1]

    def _oldest_to_replay(self) -> int:
        """Return the batch of the oldest commit that a replay may begin after; -1 for every batch."""
        oldest = next((self.commits[position] for position in self._replayable()), None)
        if oldest is None or oldest.query_id is None or oldest.query_id != self.query_id:
            return -1
        return oldest.batch

    def _switch_query(self, query_id: str) -> None:
        if query_id != self.query_id:
            self.query_id = query_id
            self._drop_batches(list(self.batches))
            self.overtaken_batches.clear()
            self.done_batch = -1

    def _drop_batches(self, batches: list[int]) -> None:
        for batch in batches:
            del self.batches[batch], self.batch_positions[batch]

    def _close(self, key: tuple[int, int], position: int) -> None:
        self._drop_open(key)
        if key not in self.abort_positions:
            self.abort_positions[key] = position
            self.orphans.add(key)

    def _drop_open(self, key: tuple[int, int]) -> None:
        self.open_attempts.pop(key, None)
        self.attempt_positions.pop(key, None)


def _insert(found: dict[int, T], position: int, value: T) -> None:
    """Put what stands at a position between what stands before and after it."""
    entries = sorted([*found.items(), (position, value)], key=lambda entry: entry[0])
    found.clear()
    found.update(entries)


def begin_ns_of(commit: CommitRecord | None) -> int:
    """Return when a commit began, by the wall clock of its driver; 0 for none."""
    return 0 if commit is None else CheckpointId.parse(commit.checkpoint_id).time_ns


def checkpoint_of(commit: CommitRecord, task: str) -> CheckpointV2 | None:
    """Return a task's checkpoint in a commit, bad markers and all; None where it has none.

    Raises:
        CheckpointCorruptError: The checkpoint in the record cannot be read.
    """
    raw = commit.checkpoints.get(task)
    return None if raw is None else decode_checkpoint_v2(bytes(raw), where=f"commit task={task}")


def version_of(commit: CommitRecord, task: str) -> VersionId | None:
    """Return a task's version in a commit; None for empty state."""
    text = commit.versions.get(task)
    return VersionId.parse(text) if text else None


def bad_markers_of(commit: CommitRecord, bad_markers: AbstractSet[BadMarker]) -> list[BadMarker]:
    """Return those of the markers that a commit holds.

    Raises:
        CheckpointCorruptError: A checkpoint in the record cannot be read.
    """
    return [
        (backend, task, store, marker)
        for backend, task, store, marker in sorted(bad_markers)
        if (checkpoint := checkpoint_of(commit, task)) is not None
        and checkpoint.markers_of(BackendName(backend)).get(StoreName(store)) == marker
    ]


def _is_of_same_batch(before: CommitRecord | None, now: CommitRecord) -> bool:
    """Return whether a tool has made a commit from the one before: a session may have other stores since."""
    if before is None or before.query is None or now.query is None:
        return False
    return (before.query.query_id, before.batch) == (now.query.query_id, now.batch)


def usable_checkpoint(
    commit: CommitRecord, task: str, bad_markers: AbstractSet[BadMarker]
) -> CheckpointV2 | None:
    """Return a task's checkpoint in a commit without bad markers; None where it has none.

    A bad marker is never again the base of an increment, which would carry the damage on, nor
    kept by clean-up (R11).

    Raises:
        CheckpointCorruptError: The checkpoint in the record cannot be read.
    """
    checkpoint = checkpoint_of(commit, task)
    if checkpoint is None:
        return None
    markers = {
        backend: {
            store: marker
            for store, marker in stores.items()
            if (backend, task, store, marker) not in bad_markers
        }
        for backend, stores in checkpoint.state_markers.items()
    }
    return replace(checkpoint, state_markers=markers)
