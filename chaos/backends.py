"""The places that a schedule may back its state up to, by the names of the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class BackendKind:
    """One kind of place."""

    settings: Callable[[Path], Mapping[str, str]]
    """From a directory of its own to the backend's settings, its ``factory`` included."""
    has_blob_files: bool
    """What it keeps lies as files below that directory, one per blob, so that a verifier can read
    it by its own means."""


def _blob(directory: Path) -> Mapping[str, str]:
    return {"factory": "blob", "uri": f"file://{directory}"}


def _hdfs(directory: Path) -> Mapping[str, str]:
    return {"factory": "hdfs", "uri": f"file://{directory}"}


KINDS: Final[Mapping[str, BackendKind]] = MappingProxyType(
    {
        "blob": BackendKind(_blob, has_blob_files=True),
        "hdfs": BackendKind(_hdfs, has_blob_files=False),
    }
)
"""Every kind, by the name that ``BACKENDS`` uses."""


@dataclass(frozen=True, slots=True)
class Place:
    """One backend of a job."""

    name: str
    """As the job's settings name it."""
    kind: str
    directory: Path

    def settings(self) -> Mapping[str, str]:
        """Return the job's settings for this backend."""
        given = KINDS[self.kind].settings(self.directory)
        return {f"backends.{self.name}.{key}": value for key, value in given.items()}


def places(kinds: Sequence[str], directory: Path) -> Sequence[Place]:
    """Return a place for each kind, named by kind and number: two of one kind stand side by side.

    Raises:
        KeyError: There is no such kind.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise KeyError(*unknown)
    names = [f"{kind}-{number}" for number, kind in enumerate(kinds, 1)]
    return [Place(name, kind, directory / name) for name, kind in zip(names, kinds, strict=True)]
