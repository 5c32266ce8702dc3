"""The records of a job log, whatever holds them."""

from collections.abc import Collection, Mapping
from typing import Protocol

from typing_extensions import override

from chaos.evidence.files import Files, log_records


class LogEvidence(Protocol):
    """One log. One thread uses it."""

    def records(self, known: Collection[int] = ()) -> Mapping[int, bytes]:
        """Return the records that are there, but for those at known positions."""
        ...

    def floor(self) -> int:
        """Return the lowest position that counts."""
        ...


class FileLog(LogEvidence):
    """A log of one file a record."""

    def __init__(self, files: Files, scope: str) -> None:
        """Take where the log is; its scope is named as the formats page says."""
        self._files = files
        self._scope = scope

    @override
    def records(self, known: Collection[int] = ()) -> Mapping[int, bytes]:
        found: dict[int, bytes] = {}
        for position, name in log_records(self._files, self._scope).items():
            if position in known:
                continue
            try:
                found[position] = self._files.read(name)
            except FileNotFoundError:
                continue  # trimmed at this moment
        return found

    @override
    def floor(self) -> int:
        names = self._files.names(f"{self._scope}/log-floor")
        return max((int(name.rpartition("/")[2]) for name in names), default=0)
