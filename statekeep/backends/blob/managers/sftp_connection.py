"""How an SFTP server is connected to, once its host key is known to be right.

Imported when a connection is made: it needs paramiko.
"""

# paramiko and fsspec have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import paramiko
from fsspec.implementations.sftp import (  # type: ignore[import-untyped]  # it ships no types
    SFTPFileSystem,
)
from paramiko.hostkeys import InvalidHostKey
from typing_extensions import override

from statekeep.errors import ConfigError

KNOWN_HOSTS: Final = "known_hosts"
"""The storage option that names the file of host keys."""
_POLICY: Final = "host_key_policy"
"""fsspec's own option, by which any key would be believed."""
_SYSTEM_FILE: Final = Path("/etc/ssh/ssh_known_hosts")


def connect_sftp(
    root_uri: str, storage_options: Mapping[str, Any], **options: object
) -> tuple[SFTPFileSystem, str]:
    """Open a connection; return its filesystem and the path of the root.

    Args:
        root_uri: ``sftp://user@host:port/path``.
        storage_options: Of paramiko's client, and `KNOWN_HOSTS`; the default are those of OpenSSH.
        options: Of fsspec and of the client.

    Raises:
        ConfigError: The server's key is unknown, or another one than is known.
    """
    if _POLICY in storage_options:
        raise ConfigError(
            f"host keys are always checked: option={_POLICY}",
            key=f"blob.store.storage.options.{_POLICY}",
            hint=f"leave it out, and name the file of the keys: storage.options.{KNOWN_HOSTS}",
        )
    of_uri = cast("Any", SFTPFileSystem)._get_kwargs_from_urls(root_uri)  # noqa: SLF001  # as fsspec does
    filesystem = cast("Any", _CheckedSftp)(**{**of_uri, **storage_options, **options})
    return filesystem, filesystem._strip_protocol(root_uri)  # noqa: SLF001  # as above


class _CheckedSftp(SFTPFileSystem):  # type: ignore[misc]  # as above
    """Talks to servers whose key is in a file of known hosts; by itself fsspec believes any key."""

    @override
    def _connect(self) -> None:
        options = dict(self.ssh_kwargs)
        files = _known_hosts_files(options.pop(KNOWN_HOSTS, None))
        self.client = paramiko.SSHClient()
        for file in files:
            _load(self.client, file)
        self.client.set_missing_host_key_policy(_RefuseUnknown(files))
        try:
            self.client.connect(self.host, **options)
        except paramiko.BadHostKeyException as exc:
            raise ConfigError(
                f"the SFTP server has another host key than is known: host={exc.hostname} "
                f"files={_shown(files)}",
                hint="somebody may stand between: ask who runs the server, and only then replace "
                "the key in that file",
            ) from None
        self.ftp = self.client.open_sftp()


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    def __init__(self, files: list[Path]) -> None:
        self._files = files

    @override
    def missing_host_key(self, client: object, hostname: str, key: Any) -> None:
        host, _, port = hostname.strip("[").partition("]:")
        scan = f"ssh-keyscan {f'-p {port} ' if port else ''}{host}"
        raise ConfigError(
            f"the host key of the SFTP server is unknown: host={hostname} kind={key.get_name()} "
            f"fingerprint={key.fingerprint} files={_shown(self._files)}",
            hint=f"compare the fingerprint with what who runs the server says, and add the key: "
            f"{scan} >> ~/.ssh/known_hosts on every machine, or in a file that "
            f"storage.options.{KNOWN_HOSTS} names",
        )


def _known_hosts_files(named: str | None) -> list[Path]:
    if named is not None:
        return [Path(named).expanduser()]
    files = [Path("~/.ssh/known_hosts").expanduser(), _SYSTEM_FILE]
    return [file for file in files if file.is_file()]


def _load(client: paramiko.SSHClient, file: Path) -> None:
    try:
        client.load_system_host_keys(str(file))
    except OSError as exc:
        msg = f"cannot read the file of known hosts: path={file} reason={exc.strerror}"
        hint = "it has to be on every machine that talks to the server"
        raise ConfigError(msg, key=f"blob.store.storage.options.{KNOWN_HOSTS}", hint=hint) from exc
    except InvalidHostKey as exc:
        msg = f"a line of the file of known hosts is not one: path={file}"
        raise ConfigError(msg, key=f"blob.store.storage.options.{KNOWN_HOSTS}") from exc


def _shown(files: list[Path]) -> str:
    return ",".join(map(str, files)) or "none"
