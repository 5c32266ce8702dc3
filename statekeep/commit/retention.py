"""Which commits a job may let go of, and which attempts are closed for good (R8)."""

from collections.abc import Sequence
from typing import Final

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import CheckpointV2
from statekeep.checkpoint.log_view import LogView
from statekeep.config.model import CheckpointSettings

MIN_RETAINED: Final = 2
"""The current commit and the one before it, which a restore falls back to."""


def commits_to_release(view: LogView, settings: CheckpointSettings, now_ms: int) -> list[int]:
    """Return the positions of commits that are no longer worth keeping, oldest first.

    The newest ``retain_commits`` stay, never fewer than `MIN_RETAINED`, and so does every pinned one
    and, if there is an age to go by, every one that began less than ``retain_ms`` ago: there a clock
    that is wrong keeps more, or no more than the number says. The positions go into a release record
    before anything is deleted.

    Args:
        view: Of the log.
        settings: How many stay, and for how long.
        now_ms: Wall-clock milliseconds.
    """
    pinned = set(view.pins.values())
    candidates = list(view.commits)[: -max(settings.retain_commits, MIN_RETAINED)]
    unpinned = [position for position in candidates if position not in pinned]
    if settings.retain_ms == 0:
        return unpinned
    youngest_ms = now_ms - settings.retain_ms
    return [
        position
        for position in unpinned
        if CheckpointId.parse(view.commits[position].checkpoint_id).millis <= youngest_ms
    ]


def expired_pins(view: LogView, now_ms: int) -> list[str]:
    """Return the names of pins that nobody renews any more, sorted; they go by an unpin record.

    Their readers were killed. A clock that is wrong by less than such a pin holds after its last
    renewal, two days, drops none that is in use.

    Args:
        view: Of the log.
        now_ms: Wall-clock milliseconds.
    """
    return sorted(name for name, expires_ms in view.pin_expiries.items() if expires_ms < now_ms)


def closed_attempts(view: LogView) -> Sequence[tuple[int, int]]:
    """Return (epoch, attempt) of everything that may be cleaned up: released or void, sorted.

    An open attempt is never among them, nor is one that a retained commit completed, nor what
    `LogView.forget_collected` was told of.
    """
    released = {commit.attempt for commit in view.released.values()}
    retained = {(commit.attempt_epoch, commit.attempt) for commit in view.commits.values()}
    closed = (released | view.orphans) - view.open_attempts.keys() - retained
    return sorted(closed)


def checkpoints_in_reach(
    view: LogView, task: str, closed: Sequence[tuple[int, int]]
) -> list[CheckpointV2]:
    """Return the retained checkpoints of a task that can reach what closed attempts made, oldest first.

    Those of the commits up to the newest closed attempt, and the first one after it. What a later one
    reaches of these attempts it took over from its base. The base is the commit before it, so it
    is reached by the first one as well. This does not hold where a query goes on from an older
    commit, whose attempt has the number 0, and where a bad marker hides what one reaches.

    A job that keeps its commits for days by their age has thousands of them, with an index for
    each task.

    Args:
        view: Of the log.
        task: Its name.
        closed: See `closed_attempts`; not empty.

    Raises:
        CheckpointCorruptError: A checkpoint in a record cannot be read.
    """
    newest_closed = max(closed)
    has_bad_markers = any(name == task for _, name, _, _ in view.bad_markers)
    found: list[CheckpointV2] = []
    has_first = False
    for commit in view.commits.values():
        if commit.attempt == 0:
            has_first = False
        if has_first:
            continue
        checkpoint = view.usable_checkpoint(commit, task)
        if checkpoint is not None:
            found.append(checkpoint)
            is_after = (commit.attempt_epoch, commit.attempt) > newest_closed
            has_first = is_after and not has_bad_markers
    return found
