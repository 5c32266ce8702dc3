"""What the records of a job log amount to, folded in order of position."""

from dataclasses import dataclass, field

from statekeep.checkpoint.records import (
    AttemptRecord,
    BadMarkerRecord,
    BaseRecord,
    BatchRecord,
    CommitRecord,
    EpochRecord,
    PinRecord,
    Record,
    ReleaseRecord,
    UnpinRecord,
    VoidRecord,
)


@dataclass
class LogView:
    """The state of a job as its log tells it.

    Owned by one `LogWriter`, which folds every record that it reads or appends; everyone else
    reads it on the same event loop.
    """

    next_position: int = 0
    """Where the next record goes: one past the last one seen."""
    epoch: int = 0
    """The newest epoch in the log; 0 before the first."""
    commits: dict[int, CommitRecord] = field(default_factory=dict)
    """Commits not released, by position, in order: the last one is current."""
    released: dict[int, CommitRecord] = field(default_factory=dict)
    """Released commits that the log still holds: their clean-up may not be done."""
    open_attempts: dict[tuple[int, int], AttemptRecord] = field(default_factory=dict)
    """Attempts neither committed nor void, by (epoch, attempt)."""
    closed_attempts: set[tuple[int, int]] = field(default_factory=set)
    """Attempts that are void, by (epoch, attempt): what they uploaded is an orphan."""
    batches: dict[int, BatchRecord] = field(default_factory=dict)
    """Batches of the current query that count, by number."""
    query_id: str | None = None
    """The query whose batch numbers `batches` holds; None before the first."""
    pins: dict[str, int] = field(default_factory=dict)
    """Positions of pinned commits, by name."""
    bad_markers: set[tuple[str, str, str, str]] = field(default_factory=set)
    """(backend, task, store, marker) that must not be used again."""

    @property
    def last_commit(self) -> CommitRecord | None:
        """The current commit; None in a log that has none yet."""
        return self.commits[self.last_commit_position] if self.commits else None

    @property
    def last_commit_position(self) -> int:
        """Position of the current commit; -1 if there is none."""
        return next(reversed(self.commits), -1)

    def fold(self, position: int, record: Record) -> None:
        """Take in the record at ``position``, which must be the next one."""
        if position < self.next_position:
            msg = f"record folded twice: position={position} next_position={self.next_position}"
            raise ValueError(msg)
        self.next_position = position + 1
        match record:
            case EpochRecord():
                self.epoch = max(self.epoch, record.epoch)
            case BaseRecord():
                self._fold_base(record)
            case BatchRecord():
                self._fold_batch(record)
            case AttemptRecord():
                self.open_attempts[record.epoch, record.attempt] = record
            case CommitRecord():
                self.open_attempts.pop((record.epoch, record.attempt), None)
                self.commits[position] = record
                if record.query is not None:
                    self._switch_query(record.query.query_id)
            case VoidRecord():
                key = (record.attempt_epoch, record.attempt)
                self.open_attempts.pop(key, None)
                self.closed_attempts.add(key)
            case ReleaseRecord():
                for released in record.positions:
                    commit = self.commits.pop(released, None)
                    if commit is not None:
                        self.released[released] = commit
            case PinRecord():
                self.pins[record.name] = record.position
            case UnpinRecord():
                self.pins.pop(record.name, None)
            case BadMarkerRecord():
                self.bad_markers.add((record.backend, record.task, record.store, record.marker))

    def _fold_base(self, record: BaseRecord) -> None:
        for key in [key for key in self.open_attempts if key[0] < record.epoch]:
            del self.open_attempts[key]
            self.closed_attempts.add(key)
        self._switch_query(record.query_id)
        for batch in [batch for batch in self.batches if batch > record.head]:
            del self.batches[batch]

    def _fold_batch(self, record: BatchRecord) -> None:
        self._switch_query(record.query_id)
        self.batches[record.batch] = record

    def _switch_query(self, query_id: str) -> None:
        if query_id != self.query_id:
            self.query_id = query_id
            self.batches.clear()
