"""Submissions that were acknowledged and are not done yet, one file each."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

from statekeep.errors import CheckpointCorruptError
from statekeep.fault_points import fault_point
from statekeep.spark.sidecar.protocol import SubmitVersion, decode_request, encode
from statekeep.stores.local_files import open_temporary
from statekeep.stores.private_directories import make_private

logger = logging.getLogger(__name__)

_ATTEMPT_LENGTH: Final = 26
"""Of a file name, the part that names epoch and attempt: 12 digits each, and dashes."""


class Outbox:
    """A directory of submissions. Blocking; used on executor threads of the sidecar.

    A file appears whole or not at all, and stands until its submission has an entry in the
    checkpoint store (a checkpoint or a failure) or was dropped. Nothing is synced: it outlives the
    sidecar, and the version that it names does not survive a power loss either.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        """Of temporary files: one submission may be written by two threads at once, as it was repeated."""

    def replace(self, requests: Sequence[SubmitVersion]) -> None:
        """Make submissions of one attempt durable against the death of the sidecar, and drop older ones.

        Older are those of a lower attempt, of any task: their driver has given them up. After an error
        some of the submissions may stand here.
        """
        temporaries = [
            (self._path(r).with_suffix(f".{next(self._numbers)}.tmp"), r) for r in requests
        ]
        try:
            for temporary, request in temporaries:
                with self._open(temporary) as file:
                    file.write(encode(request))
            for temporary, request in temporaries:
                temporary.replace(self._path(request))
                fault_point("outbox.after_entry")
        except BaseException:
            for temporary, _ in temporaries:
                temporary.unlink(missing_ok=True)
            raise
        self._drop_below(self._path(requests[0]).name[:_ATTEMPT_LENGTH])

    def remove(self, requests: Sequence[SubmitVersion]) -> None:
        """Forget submissions. Idempotent."""
        for request in requests:
            self._path(request).unlink(missing_ok=True)

    def holds(self, epoch: int, attempt: int, partition: int) -> bool:
        """Return whether a submission is here: acknowledged, and without an entry so far."""
        return (self._directory / _name(epoch, attempt, partition)).exists()

    def pending(self) -> list[SubmitVersion]:
        """Return what a sidecar that died left behind of the newest attempt; drop the rest.

        Called before anything is written here.
        """
        for path in self._directory.glob("*.tmp"):
            path.unlink(missing_ok=True)
        names = [path.name for path in self._directory.glob("*.json")]
        self._drop_below(max(names, default="")[:_ATTEMPT_LENGTH])
        found = [_read(path) for path in self._directory.glob("*.json")]
        return sorted((each for each in found if each is not None), key=lambda each: each.partition)

    def drop_older(self, epoch: int) -> None:
        """Drop what drivers before ``epoch`` submitted: their attempts are closed."""
        self._drop_below(f"{epoch:012d}-")

    def _open(self, path: Path) -> BinaryIO:
        """Open a file to write to, also where the directory was deleted meanwhile.

        State that was deleted with it comes back from a backend: that is no reason to end the query.
        """
        try:
            return open_temporary(path)
        except FileNotFoundError:
            logger.warning("the outbox was deleted, it is made anew: path=%s", self._directory)
            local_dir = self._directory.parents[2]  # of `SidecarPaths`
            make_private(local_dir, *self._directory.relative_to(local_dir).parts)
            return open_temporary(path)

    def _drop_below(self, attempt: str) -> None:
        for path in self._directory.glob("*.json"):
            if path.name[:_ATTEMPT_LENGTH] < attempt:
                path.unlink(missing_ok=True)

    def _path(self, request: SubmitVersion) -> Path:
        return self._directory / _name(request.epoch, request.attempt, request.partition)


def _name(epoch: int, attempt: int, partition: int) -> str:
    return f"{epoch:012d}-{attempt:012d}-{partition:08d}.json"


def _read(path: Path) -> SubmitVersion | None:
    """Read a submission; one that a stop of the host has torn is removed: its driver submits it again."""
    data = path.read_bytes()
    with suppress(CheckpointCorruptError):
        request = decode_request(data)
        if isinstance(request, SubmitVersion):
            return request
    logger.error("a submission is damaged, its driver has to submit it again: path=%s", path)
    path.unlink(missing_ok=True)
    return None
