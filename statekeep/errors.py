"""The error hierarchy: one class for each thing that a caller would do differently.

Messages are lowercase, say what happened and end in ``key=value``; the remedy is a hint
(``exc.add_note("hint: ...")``); what a handler needs is an attribute.
"""

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

_HINT: Final = "hint: "


class StateBackupError(Exception):
    """Base of every error that statekeep raises on purpose.

    ``str(error)`` has the message and the hints, in one line: many programs print only that.

    Attributes:
        hints: What to do about it, without the word "hint".
    """

    hints: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """What happened, without the hints."""
        return super().__str__()

    @override
    def add_note(self, note: str, /) -> None:
        """Add a note; one that starts with ``hint: `` becomes a hint, and part of ``str(error)``."""
        if note.startswith(_HINT):
            self.hints = (*self.hints, note.removeprefix(_HINT))
        else:
            super().add_note(note)

    @override
    def __str__(self) -> str:
        return "; ".join([self.message, *(f"{_HINT}{hint}" for hint in self.hints)])


class RetriableError(StateBackupError):
    """Raised when a service may answer later; nothing visible was changed.

    The retry wrapper repeats the call; a caller sees this only after its time is used up.
    """


class ThrottledError(RetriableError):
    """Raised when a service asks for fewer requests: everything that talks to it has to wait."""


class ConfigError(StateBackupError):
    """Raised when a setting, the environment or the program must be mended before a start.

    Attributes:
        key: The setting at fault, or None when it is not one setting.
    """

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        if hint is not None:
            self.add_note(f"hint: {hint}")


class KeyUnavailableError(ConfigError):
    """Raised when a key that something was encrypted with, or is to be, is missing or another one.

    What it has encrypted is whole, and giving the key back mends it: a restore may take the copy of
    another backend, never an older commit.
    """


class UnknownFormatError(ConfigError):
    """Raised when bytes are of a format, or a version of one, that this code does not read.

    They are whole, which was checked before: the version of Statekeep that wrote them reads them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="use the version of Statekeep that wrote it, or a newer one")


class CheckpointCorruptError(StateBackupError):
    """Raised when bytes that were read back fail their checks: use another copy, or older ones."""


class BlobNotFoundError(StateBackupError, FileNotFoundError):
    """Raised when a blob is not there or was deleted; asking again does not help.

    Attributes:
        blob_id: The name that was asked for.
    """

    def __init__(self, blob_id: str) -> None:
        super().__init__(f"blob not found: blob_id={blob_id}")
        self.blob_id = blob_id


class BlobExistsError(StateBackupError, FileExistsError):
    """Raised by a put with ``if_absent`` when the name is taken; nothing was changed.

    Attributes:
        blob_id: The name that is taken.
    """

    def __init__(self, blob_id: str) -> None:
        super().__init__(f"blob exists: blob_id={blob_id}")
        self.blob_id = blob_id


class TaskFencedError(StateBackupError):
    """Raised when a newer owner has taken over the job or task: stop, never restart.

    Attributes:
        own_epoch: The epoch of the writer that was fenced.
        newer_epoch: The epoch that fences it.
    """

    def __init__(self, message: str, *, own_epoch: int, newer_epoch: int) -> None:
        super().__init__(f"{message}: own_epoch={own_epoch} newer_epoch={newer_epoch}")
        self.own_epoch = own_epoch
        self.newer_epoch = newer_epoch


class CommitFailedError(StateBackupError):
    """Raised when a commit did not become durable; the commit before it is still current.

    Attributes:
        checkpoint_id: Serialised id of the commit.
        step: The step that failed: ``snapshot``, ``upload``, ``checkpoint``, ``chain``, ``record``
            or ``timeout``.
    """

    def __init__(self, message: str, *, checkpoint_id: str, step: str) -> None:
        super().__init__(f"{message}: checkpoint_id={checkpoint_id} step={step}")
        self.add_note("hint: fix what the cause names; a start goes on from the commit before")
        self.checkpoint_id = checkpoint_id
        self.step = step


class RestoreFailedError(StateBackupError):
    """Raised when no backend and no retained commit can give a store its state back.

    Attributes:
        task_name: The task whose state is out of reach.
        store_names: The stores at fault.
        is_for_good: Every copy is missing or damaged, so that asking again does not help.
    """

    def __init__(
        self,
        message: str,
        *,
        task_name: str,
        store_names: Sequence[str],
        is_for_good: bool = False,
    ) -> None:
        super().__init__(f"{message}: task={task_name} stores={','.join(store_names)}")
        self.task_name = task_name
        self.store_names = tuple(store_names)
        self.is_for_good = is_for_good


class VersionDamagedError(StateBackupError):
    """Raised when a local version directory is partial, foreign or damaged: restore it anew."""


class StateSchemaError(StateBackupError, ValueError):
    """Raised when a value, a key or a row of output does not fit its declared schema."""


class ReplayDivergedError(StateBackupError):
    """Raised when a replayed batch differs from its record: the source or the processor changed.

    Attributes:
        task_name: The task whose replay differs.
        batch: The batch that was replayed.
        keys: The first and the last grouping key of the replayed rows, for people; empty if the
            task had none.
    """

    def __init__(self, message: str, *, task_name: str, batch: int, keys: str) -> None:
        super().__init__(f"{message}: task={task_name} batch={batch} keys={keys}")
        self.task_name = task_name
        self.batch = batch
        self.keys = keys


class CheckpointLocationError(StateBackupError):
    """Raised when a query's checkpoint location does not belong to the job log beside it."""


class BackendClosedError(StateBackupError):
    """Raised when something is used after its ``close``: a mistake of the caller."""
