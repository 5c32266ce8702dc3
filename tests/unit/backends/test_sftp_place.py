"""A server of SFTP that falls silent while a connection is opened."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import paramiko
import pytest
from log_kit import InlineExecutor

from statekeep.backends.blob.managers import sftp_place
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.errors import RetriableError


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


@pytest.fixture(params=[True, False], ids=["subsystem", "channel"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    server = SilentServer(has_channels=request.param)
    transports: list[paramiko.Transport] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            transport = paramiko.Transport(listener.accept()[0])
            transports.append(transport)
            transport.add_server_key(paramiko.ECDSAKey.generate())
            transport.start_server(server=server)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        server.is_over.set()
        thread.join()
        for transport in transports:
            transport.close()
            transport.join()


@pytest.mark.asyncio
async def test_a_connection_that_the_server_does_not_open_is_given_up(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sftp_place, "_ANSWER_S", 0.2)
    options = {"password": "x", "allow_agent": False, "look_for_keys": False}
    manager = FsspecBlobStoreManager(f"sftp://u@127.0.0.1:{port}/a", options, InlineExecutor())

    with pytest.raises(RetriableError):
        await manager.init()

    transports = [each for each in threading.enumerate() if isinstance(each, paramiko.Transport)]
    for transport in transports:
        if not transport.server_mode:
            transport.join(10)
            assert not transport.is_alive()
    await manager.close()
