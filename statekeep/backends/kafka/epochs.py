"""The stamp that goes with the records of a commit, so that an older reign knows a newer one.

Correctness rests on the job log and on the transactional id, never on stamps: they only end the
quarrel between a driver and its fenced predecessor soon.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from statekeep.errors import TaskFencedError

HEADER: Final = "statekeep"
_FORM: Final = re.compile(rb"([^ ]*) ([0-9]{1,18}) ([0-9]{1,18})")

Headers = Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None


@dataclass(frozen=True, slots=True)
class EpochStamp:
    """Which job log, epoch and attempt a record comes from."""

    job_uid: str
    epoch: int
    attempt: int

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The record headers that carry the stamp."""
        return {HEADER: f"{self.job_uid} {self.epoch} {self.attempt}".encode()}


def check_epoch(own: EpochStamp, headers: Headers, topic: str) -> None:
    """Look at the headers of a record that stands behind the base's marker.

    Epochs of another job log say nothing: numbers begin anew where a log was reset.

    Raises:
        TaskFencedError: A newer epoch of the same job log wrote it.
    """
    if not headers:
        return
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in pairs:
        match = _FORM.fullmatch(value) if name == HEADER and isinstance(value, bytes) else None
        if match is None or match[1].decode(errors="replace") != own.job_uid:
            continue
        if int(match[2]) > own.epoch:
            msg = f"a newer driver has written to the changelog: topic={topic}"
            raise TaskFencedError(msg, own_epoch=own.epoch, newer_epoch=int(match[2]))
