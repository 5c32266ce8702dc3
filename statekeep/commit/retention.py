"""Which commits a job may let go of, and which attempts are closed for good (R8)."""

from collections.abc import Sequence
from typing import Final

from statekeep.checkpoint.log_view import LogView

MIN_RETAINED: Final = 2
"""The current commit and the one before it, which a restore falls back to."""


def commits_to_release(view: LogView, keep: int) -> list[int]:
    """Return the positions of commits that are no longer worth keeping, oldest first.

    The newest ``keep`` commits stay, never fewer than `MIN_RETAINED`, and so does every pinned one.
    The positions go into a release record before anything is deleted.
    """
    positions = list(view.commits)
    pinned = set(view.pins.values())
    candidates = positions[: -max(keep, MIN_RETAINED)]
    return [position for position in candidates if position not in pinned]


def closed_attempts(view: LogView) -> Sequence[tuple[int, int]]:
    """Return (epoch, attempt) of everything that may be cleaned up: released or void.

    An open attempt is never among them, nor is one that a retained commit completed.
    """
    released = {(commit.attempt_epoch, commit.attempt) for commit in view.released.values()}
    retained = {(commit.attempt_epoch, commit.attempt) for commit in view.commits.values()}
    closed = (released | view.void_attempts) - view.open_attempts.keys() - retained
    return sorted(closed)
