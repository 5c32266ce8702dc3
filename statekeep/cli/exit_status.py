"""What the commands exit with; ``docs/reference/cli.md`` has the table."""

from enum import IntEnum

from statekeep.errors import (
    BlobNotFoundError,
    CheckpointCorruptError,
    CommitFailedError,
    ConfigError,
    RestoreFailedError,
    RetriableError,
    StateBackupError,
    TaskFencedError,
)


class ExitStatus(IntEnum):
    """One number for each thing that a script would do differently."""

    FINE = 0
    BUG = 1
    """A question was not answered with yes, or an unexpected error, then with a traceback."""
    USAGE = 2
    """A setting, an option or an argument is wrong, there is no such job or commit, or a newer
    version of Statekeep wrote what is there."""
    DAMAGED = 3
    """Something that a commit needs is missing or damaged, in every copy that was asked for."""
    UNAVAILABLE = 4
    """A service may answer later, or refuses access: nothing is known to be lost."""
    FENCED = 5
    """The job has a newer owner."""
    REFUSED = 6
    """Anything else that statekeep refuses to do."""


def exit_status_of(error: StateBackupError) -> ExitStatus:
    """Return what a command exits with that ends with this error."""
    match error:
        case ConfigError() | RestoreFailedError(__cause__=ConfigError()):
            return ExitStatus.USAGE
        case CheckpointCorruptError() | BlobNotFoundError() | RestoreFailedError(is_for_good=True):
            return ExitStatus.DAMAGED
        case (
            RetriableError() | RestoreFailedError() | CommitFailedError(__cause__=RetriableError())
        ):
            return ExitStatus.UNAVAILABLE
        case TaskFencedError():
            return ExitStatus.FENCED
        case _:
            return ExitStatus.REFUSED
