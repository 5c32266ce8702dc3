"""The contract of a place that keeps each task's newest checkpoint in Samza's forms.

What decides is the job log. Such a place is written after it, for tools and jobs of Samza, and read
where the log is new: by a job that comes from Samza.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from statekeep.checkpoint.checkpoints import CheckpointV2, TaskName


@dataclass(frozen=True, slots=True)
class CheckpointForms:
    """Which forms of checkpoints are written and read."""

    write_versions: tuple[int, ...] = (2,)
    """Each write writes all of them."""
    read_versions: tuple[int, ...] = (2, 1)
    """The preferred one first; other forms are left out."""
    max_age_ms: int = 600_000
    """A preferred checkpoint that is older than another form's by more than this is stale."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as it lies in its place."""

    version: int
    """Of its form."""
    written_ms: int
    """When, by the clock of the place."""
    data: bytes


class CheckpointManager(ABC):
    """Writes and reads the newest checkpoint of each task of one job.

    Every method is a coroutine on an event loop.

    Source: Samza 1.8 ``CheckpointManager``.
    """

    @abstractmethod
    async def write(self, task: TaskName, checkpoint: CheckpointV2) -> None:
        """Make a committed checkpoint the newest of its task; repeated for a finite time.

        Raises:
            ConfigError: The place refuses us.
            RetriableError: It did not answer for all that time.
        """

    @abstractmethod
    async def read_last(self, task: TaskName) -> CheckpointV2 | None:
        """Return the newest checkpoint of a task; None where there is none.

        One of form 1 comes back in form 2, with the offsets of changelogs as markers.

        Raises:
            CheckpointCorruptError: What is there cannot be read.
            RetriableError: The place may answer later.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release clients. Idempotent."""


def choose_checkpoint(
    found: Iterable[StoredCheckpoint], forms: CheckpointForms
) -> StoredCheckpoint | None:
    """Return which of a task's checkpoints counts.

    A later one replaces the one before if its form is no less preferred, or if it is newer by more
    than ``max_age_ms``: then the preferred form is no longer written, as after a rollback.

    Args:
        found: In the order of writing.
        forms: Which forms are read, and how old the preferred one may be.

    Source: Samza 1.8 ``KafkaCheckpointManager``.
    """
    chosen: StoredCheckpoint | None = None
    for one in found:
        if one.version not in forms.read_versions:
            continue
        if (
            chosen is None
            or _rank(one, forms) <= _rank(chosen, forms)
            or one.written_ms - chosen.written_ms > forms.max_age_ms
        ):
            chosen = one
    return chosen


def _rank(checkpoint: StoredCheckpoint, forms: CheckpointForms) -> int:
    return forms.read_versions.index(checkpoint.version)
