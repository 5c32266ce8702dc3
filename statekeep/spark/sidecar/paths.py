"""Where a sidecar lives on disk, and how it gets its parameters."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from typing_extensions import override

from statekeep.checkpoint.framing import decode_json
from statekeep.checkpoint.names import escape_name
from statekeep.errors import ConfigError
from statekeep.stores.private_directories import make_private

NO_JVM: Final = 0
"""No process has this id."""

_PROTOCOL: Final = 2
"""What tasks and sidecars say to each other. A sidecar of a release with another number leaves its
directory to a successor, as one with other settings does."""
_LONGEST_SOCKET: Final = 103
"""Bytes of a socket's path: Linux takes 107, macOS 103."""


class SidecarSpec(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """What a sidecar is started with; JSON on its standard input, and never on disk."""

    job_name: str
    job_uid: str
    local_name: str
    """Name of the job's local directory."""
    operator: str
    settings: Mapping[str, str]
    """The job's configuration, key by key. May hold secrets, so no text of ours shows it."""
    stores: list[str]
    log_backend: str
    """The backend that holds the tasks' checkpoints."""
    local_dir: str
    app_id: str
    executor_id: str
    jvm_pid: int
    """`NO_JVM` if there is none whose end would have to be seen."""
    python_path: list[str]
    session: str
    """The driver session whose task starts it; unlike the rest, the next one may find it running."""

    @override
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"SidecarSpec({shown})"

    @override
    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = (name for name in self.__struct_fields__ if name != "settings")
        return [(name, getattr(self, name)) for name in shown]

    def encode(self) -> bytes:
        """Return what `decode` reads, secrets included."""
        return msgspec.json.encode(self)

    @property
    def digest(self) -> str:
        """Differs for sidecars that were started with other settings, or speak another protocol."""
        spec = msgspec.json.encode(msgspec.structs.replace(self, session=""), order="sorted")
        return hashlib.sha256(b"%d" % _PROTOCOL + spec).hexdigest()

    @staticmethod
    def decode(data: bytes) -> "SidecarSpec":
        """Read what a sidecar is started with; CheckpointCorruptError if it is nothing of the kind."""
        return decode_json(_decoder, data, "not the spec of a sidecar")


_decoder: Final = msgspec.json.Decoder(SidecarSpec)


@dataclass(frozen=True, slots=True)
class SidecarPaths:
    """Paths of the sidecar of one executor of one application, for one job."""

    directory: Path
    """``<local dir>/<job>/container-<app>-<executor>``: a name of before, by which it is found everywhere."""

    @property
    def lock(self) -> Path:
        """Held by flock while the sidecar lives."""
        return self.directory / "lock"

    @property
    def start_lock(self) -> Path:
        """Held by the task that starts a sidecar, so that one starts at a time."""
        return self.directory / "start-lock"

    @property
    def outbox(self) -> Path:
        """Submissions that were acknowledged and are not done."""
        return self.directory / "outbox"

    @property
    def log(self) -> Path:
        """The sidecar's one log file, rotated."""
        return self.directory / "container.log"

    @property
    def socket(self) -> Path:
        """The socket, in the temporary directory, or in ``/tmp`` where that path would be too long."""
        digest = hashlib.sha256(str(self.directory.resolve()).encode()).hexdigest()[:20]
        name = f"statekeep-{os.getuid()}/.sockets/{digest}.sock"
        path = Path(tempfile.gettempdir(), name)
        return path if len(os.fsencode(path)) <= _LONGEST_SOCKET else Path("/tmp", name)  # noqa: S108 - made private

    def prepare(self) -> None:
        """Make the directories, private to the user.

        Raises:
            ConfigError: One of them, or the directory of sockets, is another user's; the hint says
                which setting names another one.
        """
        local_dir = self.directory.parent.parent
        make_private(local_dir, *self.outbox.relative_to(local_dir).parts)
        sockets = self.socket.parent
        try:
            make_private(sockets.parent, sockets.name)
        except (ConfigError, PermissionError) as exc:
            rest = self.socket.relative_to(sockets.parent.parent)
            room = _LONGEST_SOCKET - 1 - len(os.fsencode(rest))
            raise ConfigError(
                f"there is no directory for the sockets of sidecars: directory={sockets.parent} "
                f"user={os.geteuid()}",
                hint=f"set TMPDIR to a directory of this user whose path has at most {room} bytes",
            ) from exc


def sidecar_paths(local_dir: Path, job_name: str, app_id: str, executor: str) -> SidecarPaths:
    """Return the paths of an executor's sidecar."""
    return SidecarPaths(local_dir / escape_name(job_name) / f"container-{app_id}-{executor}")
