"""What puts and deletes have left in a place that nothing retained explains."""

import re
from collections.abc import Callable, Collection
from typing import Final

from chaos.evidence.files import Files
from chaos.evidence.logs import FileLog
from chaos.evidence.snapshots import Attempt, attempt_of

_RECORD: Final = re.compile(r"(.*)/log/(\d+)\.json")
_SNAPSHOT: Final = re.compile(r"(.*/\d+_[0-9a-f]{32})\.snapshot")
_CHECKPOINT: Final = re.compile(r".*/checkpoints/(\d+)-(\d+)/.*")
_EVENTS: Final = re.compile(r"(.*)/checkpoints/events-(\d+)(?:\.[ab])?/.*")
_KEPT_SESSIONS: Final = 10
"""Whose progress events are kept; what their writer left when it was killed goes with them."""
_PROBE: Final = re.compile(r".*/log-probe/.*")
"""Of a start that was killed, which no later one may tell from one that goes on."""


def find_leftovers(
    files: Files,
    job: str,
    retained: Callable[[str], Collection[Attempt]],
) -> list[str]:
    """Return what should have been swept, in words.

    A put of an attempt that made a retained commit may have been begun again, as its answer was lost:
    what the first try left goes with that commit. A snapshot may still be written for as long as the
    delta of its upload is needed, and a record may still get its name above the floor of its log.

    Args:
        files: Of the place.
        job: Below which everything lies.
        retained: Returns the attempts whose commits are retained where a name lies.
    """
    there = files.names(job)
    unfinished = files.unfinished(job)
    newest: dict[str, int] = {}
    for found in map(_EVENTS.fullmatch, {*there, *unfinished}):
        if found is not None:
            newest[found[1]] = max(newest.get(found[1], 0), int(found[2]))

    def is_explained(name: str) -> bool:
        if (record := _RECORD.fullmatch(name)) is not None:
            return int(record[2]) >= FileLog(files, record[1]).floor()
        snapshot = _SNAPSHOT.fullmatch(name)
        if snapshot is not None and f"{snapshot[1]}.delta" in there:
            return True
        events = _EVENTS.fullmatch(name)
        if events is not None:
            return int(events[2]) > newest[events[1]] - _KEPT_SESSIONS
        checkpoint = _CHECKPOINT.fullmatch(name)
        attempt = attempt_of(name)
        if checkpoint is not None:
            attempt = int(checkpoint[1]), int(checkpoint[2])
        return bool(_PROBE.fullmatch(name)) or attempt in retained(name)

    parts = [name for name in sorted(unfinished) if not is_explained(name)]
    empty = sorted(files.empty_directories(job))
    return [f"parts of {name}" for name in parts] + [
        f"the empty directory {name}" for name in empty
    ]
