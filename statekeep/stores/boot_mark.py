"""Whether what lies in a directory was written, or checked, since this host was started."""

from pathlib import Path
from typing import Final

from statekeep.errors import CheckpointCorruptError
from statekeep.stores.local_files import private_opener, read_document

BOOT_FILE: Final = "boot-id"

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what Linux draws at each start of the host; "" where there is no such thing."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class BootMark:
    """A file in a directory that names the start of the host.

    A version is not synced to the disk when it is made. After a power loss its files may have their
    sizes, and zeros inside.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / BOOT_FILE

    @property
    def is_current(self) -> bool:
        """Whether the host has not been started since `write`, as far as that can be known."""
        current = boot_id()
        try:
            return not current or read_document(self._path) == current.encode()
        except (OSError, CheckpointCorruptError):
            return False

    def write(self) -> None:
        """Record that all of the directory is checked."""
        with open(self._path, "w", encoding="ascii", opener=private_opener) as file:
            file.write(boot_id())
