"""The name of a version: the immutable local image of a task's stores after a batch."""

import re
from dataclasses import dataclass
from typing import Final, Self

from typing_extensions import override

from statekeep.errors import CheckpointCorruptError

_FORM: Final = re.compile(r"([0-9]{1,18})_([0-9a-f]{8,64})")


@dataclass(frozen=True, order=True, slots=True)
class VersionId:
    """Names one version as ``<batch>_<uid>``.

    Two versions of one batch are different images: only the uid says which. A version is chosen
    by uid, never by batch number.

    Source: Spark's unique checkpoint ids (SPARK-49374).
    """

    batch: int
    """The batch (on Spark) or the commit (in plain Python) after which the version was sealed."""
    uid: str
    """8 to 64 digits of lower-case hex, drawn anew by each attempt that makes a version."""

    def __post_init__(self) -> None:
        if _FORM.fullmatch(str(self)) is None:
            msg = f"no version id is of this form: batch={self.batch} uid={self.uid!r}"
            raise ValueError(msg)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``<batch>_<uid>``.

        Raises:
            CheckpointCorruptError: The text is not of that form.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            msg = f"not a version id: text={text!r}"
            raise CheckpointCorruptError(msg)
        return cls(int(match[1]), match[2])

    @override
    def __str__(self) -> str:
        return f"{self.batch}_{self.uid}"
