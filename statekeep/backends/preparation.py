"""The remote side of a backend, set up and checked: at a start, and after each outage."""

import logging

from statekeep.backends.base import StateBackendAdmin
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import RetriableError

logger = logging.getLogger(__name__)


async def prepare(admin: StateBackendAdmin, *, is_checked: bool = False) -> None:
    """Create what is missing, check the storage unless that was done, and close the admin.

    Raises:
        ConfigError: The storage refuses us, or cannot do what is needed.
        RetriableError: It does not answer.
    """
    try:
        await admin.create_resources()
        if not is_checked:
            await admin.validate_resources()
    finally:
        await admin.close()


async def prepare_unless_away(backend: BackendName, admin: StateBackendAdmin) -> bool:
    """Prepare a backend that a start can go on without; return whether it answers.

    One that does not is an error in the log. It is prepared again by the first commit that finds it
    there: see `TaskStorageCommitManager.ask_optional_first`.

    Raises:
        ConfigError: The storage refuses us, or cannot do what is needed: a person has to mend it.
    """
    try:
        await prepare(admin)
    except RetriableError:
        logger.exception(
            "optional backend does not answer, the start goes on without it: backend=%s", backend
        )
        return False
    return True
