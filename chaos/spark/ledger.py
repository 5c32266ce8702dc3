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

        What an upload made may also go once its marker has turned out to be bad.
        """
        bad = {marker.rpartition("/")[0] for marker in story.bad_markers}
        return [
            f"15: {self._name}: {name} is gone, but its attempt is neither released nor closed"
            for name, attempt in sorted(gone.items())
            if not story.is_closed(attempt) and name.rpartition("/")[0] not in bad
        ]
