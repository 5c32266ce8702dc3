"""Keeps account of the blobs that a place has held: none may go before its attempt has ended."""

from collections.abc import Mapping, Sequence

from chaos.evidence.files import Files
from chaos.evidence.snapshots import Attempt, list_blobs
from chaos.spark.log_story import LogStory


class Ledger:
    """The blobs of one place over time."""

    def __init__(self, name: str, files: Files, job: str) -> None:
        self._name = name
        self._files = files
        self._job = job
        self._held: Mapping[str, Attempt] = {}
        self.deleted = 0

    def gone(self) -> Mapping[str, Attempt]:
        """Look once; return what is gone since the last look, with who made it."""
        there = list_blobs(self._files, self._job)
        gone = {name: attempt for name, attempt in self._held.items() if name not in there}
        self._held = there
        self.deleted += len(gone)
        return gone

    def check(self, gone: Mapping[str, Attempt], story: LogStory) -> Sequence[str]:
        """Hold deletions against the log, as it is after they were seen (15).

        What an upload made may also go once its marker has turned out to be bad; and what an attempt
        has uploaded twice, where the commit names the other upload, once a later attempt is closed.
        """
        bad = {marker.rpartition("/")[0] for marker in story.bad_markers}
        return [
            f"15: {self._name}: {name} is gone, but its attempt is neither released nor closed"
            for name, attempt in sorted(gone.items())
            if not story.is_closed(attempt)
            and name.rpartition("/")[0] not in bad
            and not self._is_left_over(name, attempt, story)
        ]

    def _is_left_over(self, name: str, attempt: Attempt, story: LogStory) -> bool:
        named = story.markers(attempt, self._name)
        return (
            bool(named)
            and attempt < story.newest_closed
            and not any(marker.startswith(_upload_of(name)) for marker in named)
        )


def _upload_of(name: str) -> str:
    """Return how the marker begins of the upload that made a blob or a file."""
    directory, slash, file = name.rpartition("/")
    return f"{directory}{slash}{file.partition('-')[0].partition('.')[0]}"
