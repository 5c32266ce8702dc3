"""Which commits a job may release, and which attempts are closed (R8)."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from statekeep.checkpoint.checkpoints import CheckpointId, CheckpointV2
from statekeep.checkpoint.log_view import BadMarker, LogView, bad_markers_of, usable_checkpoint
from statekeep.checkpoint.records import CommitRecord
from statekeep.config.job_settings import CheckpointSettings
from statekeep.errors import CheckpointCorruptError

MIN_RETAINED: Final = 2
"""The current commit and the one before it, which a restore falls back to."""

_MOST_OLDER: Final = 64
"""Retained commits that are read to clean up after one aborted attempt; commits kept by age are thousands."""

ReadCommits = Callable[[Iterable[int]], Awaitable[Mapping[int, CommitRecord]]]
"""Returns the records of commits, by position: see `LogReader.read_commits`."""


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

    def is_old(position: int) -> bool:
        return CheckpointId.parse(view.commits[position].checkpoint_id).millis <= youngest_ms

    # A young commit keeps all later ones: of thousands only those that go have to be looked at.
    return list(takewhile(is_old, unpinned))


def expired_pins(view: LogView, now_ms: int) -> list[str]:
    """Return the names of expired pins, sorted; an unpin record removes them.

    Their readers were killed. A clock that is wrong by less than such a pin holds after its last
    renewal, two days, drops none that is in use.

    Args:
        view: Of the log.
        now_ms: Wall-clock milliseconds.
    """
    return sorted(name for name, expires_ms in view.pin_expiries.items() if expires_ms < now_ms)


def closed_attempts(view: LogView) -> Sequence[tuple[int, int]]:
    """Return (epoch, attempt) of everything that may be cleaned up: released or aborted, sorted.

    An open attempt is never among them, nor is one that a retained commit completed, nor what
    was passed to `LogView.forget_collected`. An aborted attempt waits while too many retained commits are
    older: to decide what may be deleted, each of them would have to be read. So what it left behind
    stays at most as long as they do.
    """
    released = {commit.attempt for commit in view.released.values()}
    retained = [commit.attempt for commit in view.commits.values()]
    aborted = view.orphans
    if len(retained) > _MOST_OLDER:
        bound = max([retained[_MOST_OLDER], *released])
        aborted = {attempt for attempt in aborted if attempt < bound}
    return sorted((released | aborted) - view.open_attempts.keys() - set(retained))


async def commits_in_reach(
    view: LogView, closed: Sequence[tuple[int, int]], read_commits: ReadCommits
) -> "ReachingCommits":
    """Return the retained commits that can reach what closed attempts made, oldest first.

    Those up to the newest closed attempt, and the first one after it. What a later one reaches of these
    attempts it took over from its base. The base is the commit before it, so it is reached by the first
    one as well. This does not hold where a query goes on from an older commit, whose attempt has the
    number 0. Nor does it hold where a bad marker hides what a commit reaches: then the next commit is
    needed too, which may have taken it over before the marker was found bad.

    A job that keeps its commits for days by their age has thousands of them, with an index for
    each task: most are neither needed nor in memory.

    Args:
        view: Of the log, as it is when this is called; it may go on meanwhile.
        closed: See `closed_attempts`; not empty.
        read_commits: Returns the records of commits.

    Raises:
        CheckpointCorruptError: A record cannot be read.
        RetriableError: The log may answer later.
    """
    newest_closed, bad_markers = max(closed), frozenset(view.bad_markers)
    wanted: list[int] = []
    has_first = False
    for position, commit in list(view.commits.items()):
        if commit.attempt[1] == 0:
            has_first = False
        if has_first:
            continue
        wanted.append(position)
        if commit.attempt > newest_closed:
            has_first = True
            if bad_markers:
                found = await read_commits([position])
                has_first = not any(_has_bad_marker(r, bad_markers) for r in found.values())
    records = await read_commits(wanted)
    return ReachingCommits([records[position] for position in wanted], bad_markers)


@dataclass(frozen=True, slots=True)
class ReachingCommits:
    """What clean-up must spare, by one view of the log."""

    commits: Sequence[CommitRecord]
    """Oldest first."""
    bad_markers: AbstractSet[BadMarker]

    def checkpoints(self, task: str) -> list[CheckpointV2]:
        """Return those of a task, without bad markers.

        Raises:
            CheckpointCorruptError: A checkpoint in a record cannot be read.
        """
        found = (usable_checkpoint(commit, task, self.bad_markers) for commit in self.commits)
        return [checkpoint for checkpoint in found if checkpoint is not None]


def _has_bad_marker(commit: CommitRecord, bad_markers: AbstractSet[BadMarker]) -> bool:
    """Return whether a commit holds a marker that is bad, or a checkpoint that cannot be read."""
    try:
        return bool(bad_markers_of(commit, bad_markers))
    except CheckpointCorruptError:
        return True
