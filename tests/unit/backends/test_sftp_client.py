"""An SFTP server that is silent, or has another host key than is known, while a connection is opened."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import paramiko
import pytest
from log_kit import InlineExecutor

from statekeep.backends.storage import sftp as sftp_client
from statekeep.errors import ConfigError, RetriableError
from statekeep.testing.storage import bare_manager


class SilentServer(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
    """Lets everybody in, and is silent from then on, or once it is asked for SFTP."""

    def __init__(self, *, has_channels: bool) -> None:
        self.has_channels = has_channels
        self.is_over = threading.Event()

    def check_auth_password(self, username: str, password: str) -> int:
        return int(paramiko.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if not self.has_channels:
            self.is_over.wait()
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_subsystem_request(self, channel: Any, name: str) -> bool:
        self.is_over.wait()
        return False


KEY = paramiko.ECDSAKey.generate()


@pytest.fixture(params=[True, False], ids=["subsystem", "channel"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    yield from serve_one(SilentServer(has_channels=request.param))


@pytest.fixture
def one_port() -> Iterator[int]:
    yield from serve_one(SilentServer(has_channels=True))


def serve_one(server: SilentServer) -> Iterator[int]:
    transports: list[paramiko.Transport] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            transport = paramiko.Transport(listener.accept()[0])
            transports.append(transport)
            transport.add_server_key(KEY)
            with suppress(paramiko.SSHException, EOFError):  # the client may go at once
                transport.start_server(server=server)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        server.is_over.set()
        thread.join()
        for transport in transports:
            transport.close()
            transport.join()


OPTIONS = {"password": "x", "allow_agent": False, "look_for_keys": False}


def known_hosts(directory: Path, port: int, *keys: paramiko.PKey) -> Path:
    lines = [f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n" for key in keys]
    path = directory / "known_hosts"
    path.write_text("".join(lines))
    return path


@pytest.mark.asyncio
async def test_a_connection_that_the_server_does_not_open_is_given_up(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sftp_client, "_ANSWER_S", 0.2)
    options = OPTIONS | {"known_hosts": str(known_hosts(tmp_path, port, KEY))}
    manager = bare_manager(f"sftp://u@127.0.0.1:{port}/a", options, InlineExecutor())

    with pytest.raises(RetriableError):
        await manager.init()

    transports = [each for each in threading.enumerate() if isinstance(each, paramiko.Transport)]
    for transport in transports:
        if not transport.server_mode:
            transport.join(10)
            assert not transport.is_alive()
    await manager.close()


@pytest.mark.asyncio
async def test_a_server_whose_key_is_unknown_is_refused_with_the_remedy(
    one_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    message = await refusal(one_port, OPTIONS)
    assert f"host key of the SFTP server is unknown: host=[127.0.0.1]:{one_port}" in message
    assert KEY.fingerprint in message
    assert f"ssh-keyscan -p {one_port} 127.0.0.1 >> ~/.ssh/known_hosts" in message


@pytest.mark.asyncio
async def test_a_server_with_another_key_than_is_known_is_refused(
    one_port: int, tmp_path: Path
) -> None:
    path = known_hosts(tmp_path, one_port, paramiko.ECDSAKey.generate())
    message = await refusal(one_port, OPTIONS | {"known_hosts": str(path)})
    assert "another host key than is known" in message
    assert str(path) in message


@pytest.mark.asyncio
async def test_the_keys_of_openssh_are_used_where_no_file_is_named(
    one_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sftp_client, "_ANSWER_S", 0.2)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    known_hosts(tmp_path / ".ssh", one_port, paramiko.RSAKey.generate(2048), KEY)
    uri = f"sftp://u@127.0.0.1:{one_port}/a"
    manager = bare_manager(uri, OPTIONS, InlineExecutor())
    with pytest.raises(RetriableError):  # it is let in, and then hears nothing
        await manager.init()
    await manager.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"known_hosts": "/nowhere/known_hosts"}, "path=/nowhere/known_hosts"),
        ({"host_key_policy": "auto_add"}, "host keys are always checked"),
    ],
)
async def test_keys_cannot_be_left_unchecked(options: dict[str, str], complaint: str) -> None:
    assert complaint in await refusal(1, OPTIONS | options)


class FakeFilesystem:
    """Stands in for a connection's filesystem: every part of it is this object."""

    def __init__(self, made: list["FakeFilesystem"]) -> None:
        self.is_alive = True
        self.client = self.ftp = self
        made.append(self)

    def get_channel(self) -> "FakeFilesystem":
        return self

    get_transport = get_channel

    def settimeout(self, _: float) -> None: ...

    set_keepalive = join = settimeout

    def is_active(self) -> bool:
        return self.is_alive

    def close(self) -> None:
        self.is_alive = False

    def ls(self, root: str) -> list[str]:
        if not self.is_alive:
            raise EOFError
        return [root]


def test_connections_that_the_server_has_closed_fail_no_call() -> None:
    made: list[FakeFilesystem] = []
    client = sftp_client.SftpClient(
        lambda **_: (cast("Any", FakeFilesystem(made)), "/a"), "sftp://h/a"
    )
    with ExitStack() as lent:
        for _ in range(3):
            lent.enter_context(client._connection())
    for each in made:
        each.is_alive = False
    client.reach()
    assert len(made) == 4
    client.reach()
    assert len(made) == 4
    client.close()


async def refusal(port: int, options: Mapping[str, Any]) -> str:
    uri = f"sftp://u@127.0.0.1:{port}/a"
    manager = bare_manager(uri, options, InlineExecutor())
    with pytest.raises(ConfigError) as caught:
        await manager.init()
    await manager.close()
    return str(caught.value)
