"""The identity of one commit."""

import re
from dataclasses import dataclass
from typing import Final, Self

from typing_extensions import override

from statekeep.errors import CheckpointCorruptError

_FORM: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,9})")
_MAX_MILLIS: Final = 10**18
_MAX_NANOS: Final = 10**9
_NANOS_PER_MILLI: Final = 1_000_000


@dataclass(frozen=True, order=True, slots=True)
class CheckpointId:
    """Names one commit; unique within a job, ordered by time for people to read.

    The order is for listings only. What is newest is decided by position in the job log,
    never by a `CheckpointId`: clocks differ and jump.

    Source: Samza 1.8 ``CheckpointId`` (``<epoch millis>-<nanos mod 10^6>``, not zero-padded).
    """

    millis: int
    """Milliseconds since the epoch when the commit began."""
    nanos: int
    """A finer clock reading modulo 1,000,000, to tell two commits of one millisecond apart."""

    def __post_init__(self) -> None:
        if not (0 <= self.millis < _MAX_MILLIS and 0 <= self.nanos < _MAX_NANOS):
            msg = f"checkpoint id is out of range: millis={self.millis} nanos={self.nanos}"
            raise ValueError(msg)

    @classmethod
    def at(cls, time_ns: int) -> Self:
        """Return the id of a commit that begins at ``time_ns``, wall-clock nanoseconds."""
        return cls(*divmod(time_ns, _NANOS_PER_MILLI))

    @property
    def time_ns(self) -> int:
        """When the commit began, in wall-clock nanoseconds."""
        return self.millis * _NANOS_PER_MILLI + self.nanos

    def serialize(self) -> str:
        """Return the text form, such as ``1700000000123-456789``."""
        return f"{self.millis}-{self.nanos}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form.

        Raises:
            CheckpointCorruptError: The text is not of that form.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            msg = f"not a checkpoint id: text={text!r}"
            raise CheckpointCorruptError(msg)
        return cls(int(match[1]), int(match[2]))

    @override
    def __str__(self) -> str:
        return self.serialize()
