"""Which retained commit of a job a reader means: by name, by batch or by time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.log_view import CommitEntry
from statekeep.checkpoint.records import CommitRecord
from statekeep.errors import ConfigError
from statekeep.inspection.job import OTHER_NAME, InspectedJob

_LISTED = "`statekeep checkpoints list` shows what is retained"


@dataclass(frozen=True, slots=True)
class CommitChoice:
    """A retained commit. At most one field is set; none means the current commit."""

    name: str | None = None
    """Its pin or savepoint, its position, or its checkpoint id."""
    batch: int | None = None
    """The batch that it is of."""
    as_of_ms: int | None = None
    """A time in milliseconds: the newest commit that began at or before it."""

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.name, self.batch, self.as_of_ms)) > 1:
            raise ConfigError(
                "the commit is named more than once",
                hint="give one of its name, its batch and a time",
            )

    @property
    def is_of_one_log(self) -> bool:
        """Whether it is of one log alone: every log counts its positions, ids and batches by itself."""
        return self.batch is not None or OTHER_NAME.fullmatch(self.name or "") is not None

    def find(self, job: InspectedJob) -> tuple[int, CommitRecord]:
        """Return the commit with its position.

        Raises:
            ConfigError: There is no such commit, it is released, or a released one may have been
                nearer to the time.
        """
        if self.batch is not None:
            return self._of_batch(job, self.batch)
        if self.as_of_ms is not None:
            return _as_of(job, self.as_of_ms)
        return job.find_commit(self.name)

    @staticmethod
    def _of_batch(job: InspectedJob, batch: int) -> tuple[int, CommitRecord]:
        _, current = job.find_commit()
        query = None if current.query is None else current.query.query_id
        # Numbers of batches compare only within one query.
        own = {p: entry.batch for p, entry in job.view.commits.items() if entry.query_id == query}
        found = [position for position, committed in own.items() if committed == batch]
        if not found:
            raise ConfigError(
                "no retained commit is of this batch: "
                f"batch={batch} batches={','.join(map(str, sorted(set(own.values()))))}",
                hint=f"a commit holds several batches; {_LISTED}",
            )
        return found[-1], job.commit_at(found[-1])


def parse_time(text: str) -> int:
    """Return a time as milliseconds since the epoch: ISO 8601, in UTC unless it has a zone.

    Raises:
        ConfigError: It is no time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"not a time: found={text!r}", hint="write it as 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _as_of(job: InspectedJob, time_ms: int) -> tuple[int, CommitRecord]:
    commits = job.view.commits
    began = {position: _began_ms(entry) for position, entry in commits.items()}
    found = [position for position, began_ms in began.items() if began_ms <= time_ms]
    if not found:
        job.find_commit()  # a job without any commit says so
        raise ConfigError(
            f"no retained commit is that old: time={_shown(time_ms)} "
            f"oldest={_shown(min(began.values()))}",
            hint=_LISTED,
        )
    position = found[-1]
    if position < job.view.newest_released:
        # Between this one and the next there may have been others, which were released.
        raise ConfigError(
            f"the commit of this time may be released: time={_shown(time_ms)} {_around(began, position)}",
            hint=f"name one of these two commits; {_LISTED}",
        )
    return position, job.commit_at(position)


def _around(began: Mapping[int, int], position: int) -> str:
    after = next((later for later in began if later > position), None)
    shown = [f"before={position} ({_shown(began[position])})"]
    if after is not None:
        shown.append(f"after={after} ({_shown(began[after])})")
    return " ".join(shown)


def _began_ms(entry: CommitEntry) -> int:
    return CheckpointId.parse(entry.checkpoint_id).millis


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
