"""What is told of a commit that is durable."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """A commit that is durable, for people and for ``lastCommit``."""

    checkpoint_id: str
    batch: int
    position: int
    elapsed_ms: int
    tasks_uploaded: int
    bytes_uploaded: int = 0
    """By all tasks to all backends, as far as backends count."""
    was_rolled_forward: bool = False
    left_out: Sequence[str] = ()
    """Optional backends that lack the state of some task at this commit."""
