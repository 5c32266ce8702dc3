"""What a commit is of: the names of tasks, stores and backends, its id, the version, the markers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NewType, Self

from typing_extensions import override

from statekeep.errors import CheckpointCorruptError

TaskName = NewType("TaskName", str)
"""Name of a task, such as ``Partition 3``."""
StoreName = NewType("StoreName", str)
"""Name of a local store, as in ``stores.<name>.backup.factories``."""
BackendName = NewType("BackendName", str)
"""What ``stores.<name>.backup.factories`` lists and state checkpoint markers are keyed by."""
Marker = NewType("Marker", str)
"""State checkpoint marker: by it a backend finds one store's state at one checkpoint."""

_CHECKPOINT_ID: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,9})")
_MAX_MILLIS: Final = 10**18
_MAX_NANOS: Final = 10**9
_NANOS_PER_MILLI: Final = 1_000_000
_VERSION_ID: Final = re.compile(r"([0-9]{1,18})_([0-9a-f]{8,64})")


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
        match = _CHECKPOINT_ID.fullmatch(text)
        if match is None:
            msg = f"not a checkpoint id: text={text!r}"
            raise CheckpointCorruptError(msg)
        return cls(int(match[1]), int(match[2]))

    @override
    def __str__(self) -> str:
        return self.serialize()


@dataclass(frozen=True, order=True, slots=True)
class VersionId:
    """Names one version as ``<batch>_<uid>``: the immutable local image of a task's stores after a batch.

    Two versions of one batch are different images: only the uid says which. A version is chosen
    by uid, never by batch number.

    Source: Spark's unique checkpoint ids (SPARK-49374).
    """

    batch: int
    """The batch (on Spark) or the commit (in plain Python) after which the version was sealed."""
    uid: str
    """8 to 64 digits of lower-case hex, drawn anew by each attempt that makes a version."""

    def __post_init__(self) -> None:
        if _VERSION_ID.fullmatch(str(self)) is None:
            msg = f"no version id is of this form: batch={self.batch} uid={self.uid!r}"
            raise ValueError(msg)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``<batch>_<uid>``.

        Raises:
            CheckpointCorruptError: The text is not of that form.
        """
        match = _VERSION_ID.fullmatch(text)
        if match is None:
            msg = f"not a version id: text={text!r}"
            raise CheckpointCorruptError(msg)
        return cls(int(match[1]), match[2])

    @override
    def __str__(self) -> str:
        return f"{self.batch}_{self.uid}"


@dataclass(frozen=True, order=True, slots=True)
class SystemStreamPartition:
    """One partition of one input stream (ssp)."""

    system: str
    """Name of the source system, without dots: ``kafka``."""
    stream: str
    """Topic or path; may hold dots."""
    partition: int
    """Number of the partition within the stream."""


@dataclass(frozen=True, slots=True)
class CheckpointV2:
    """One task's commit: its id, its input positions, and where each backend holds each store.

    It counts only once a commit record in the job log holds it.

    Source: Samza 1.8 ``CheckpointV2``.
    """

    checkpoint_id: CheckpointId
    input_offsets: Mapping[SystemStreamPartition, str]
    """Last processed offset of each input, as its source writes it."""
    state_markers: Mapping[BackendName, Mapping[StoreName, Marker]] = field(
        default_factory=dict[BackendName, Mapping[StoreName, Marker]]
    )
    """``{backend: {store: marker}}``; a store without an entry was not backed up there."""

    def markers_of(self, backend: BackendName) -> Mapping[StoreName, Marker]:
        """Return ``{store: marker}`` of one backend, empty where it holds nothing."""
        return self.state_markers.get(backend, {})
