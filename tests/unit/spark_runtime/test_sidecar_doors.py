"""Who is let in at a sidecar's socket, and what one connection may cost."""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from second_user import OTHER_USER, needs_root, run_as_other_user, shared_directory
from sidecar_process_kit import paths_in, spec_in, submit_versions, until
from typing_extensions import override

from statekeep.config.job_settings import ContainerSettings
from statekeep.errors import ConfigError
from statekeep.spark.sidecar import client
from statekeep.spark.sidecar import server as server_module
from statekeep.spark.sidecar.follower import Follower
from statekeep.spark.sidecar.paths import SidecarPaths
from statekeep.spark.sidecar.protocol import (
    MAX_FRAME_BYTES,
    NOT_ADMITTED,
    SIDECAR,
    TASK,
    Answer,
    Done,
    Greeting,
    Hello,
    Proof,
    Refused,
    Request,
    Stop,
    Welcome,
    decode_answer,
    decode_greeting,
    encode_frame,
    is_proof,
    job_key,
    proof,
    read_frame,
)
from statekeep.spark.sidecar.server import SidecarServer
from statekeep.spark.sidecar.work import SidecarWork
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor


class HeldClock(FakeClock):
    """Sleeps end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []
        self.rings = asyncio.Event()

    @override
    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self.rings.wait()


class NoWork:
    """Takes submissions, and has them done at once."""

    def __init__(self) -> None:
        self.executor = SerialExecutor()
        self.spec_digest = ""
        nothing: Any = None
        self.follower = Follower(nothing, nothing, self.executor, [])

    async def upload(self, request: object) -> None:
        pass

    async def close(self) -> None:
        pass


class Rig:
    def __init__(self, root: Path) -> None:
        self.paths = paths_in(root)
        self.clock = HeldClock()
        settings = ContainerSettings(grace_ms=0, idle_ms=0)
        self.server = SidecarServer(self.paths, cast("SidecarWork", NoWork()), self.clock, settings)

    @property
    def is_untouched(self) -> bool:
        return self.server._newest == (0, 0) and not self.server._is_stopping.is_set()


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[Rig]:
    rig = Rig(root)
    running = asyncio.create_task(rig.server.run(0))
    await until(rig.paths.socket.exists)
    try:
        yield rig
    finally:
        rig.server._is_stopping.set()
        await running


class Peer:
    """The other end of a connection, which says what the test lets it say."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def hear(self) -> Greeting:
        return decode_greeting(await read_frame(self.reader))

    async def answer(self) -> Answer:
        return decode_answer(await read_frame(self.reader))

    def say(self, message: Greeting | Request) -> None:
        self.writer.write(encode_frame(message))

    async def greet(self, key: bytes) -> Greeting:
        hello = await self.hear()
        assert isinstance(hello, Hello)
        self.say(Proof(nonce="mine", proof=proof(key, TASK, hello.nonce, "mine")))
        return await self.hear()


@asynccontextmanager
async def connected(rig: Rig) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_unix_connection(str(rig.paths.socket))
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


@pytest.mark.asyncio
async def test_a_task_with_the_key_is_let_in_and_sees_that_the_sidecar_has_it_too(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as rig, connected(rig) as peer:
        hello = await peer.hear()
        assert isinstance(hello, Hello)
        key = job_key(rig.paths)
        peer.say(Proof(nonce="mine", proof=proof(key, TASK, hello.nonce, "mine")))
        welcome = await peer.hear()
        assert isinstance(welcome, Welcome)
        assert is_proof(welcome.proof, key, SIDECAR, hello.nonce, "mine")
        peer.say(submit_versions())
        assert isinstance(await peer.answer(), Done)


@pytest.mark.asyncio
async def test_a_forged_request_of_a_newer_driver_does_not_end_the_sidecar(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as rig:
        async with connected(rig) as peer:
            refused = await peer.greet(b"x" * 32)
            assert isinstance(refused, Refused)
            assert refused.error == NOT_ADMITTED
            peer.say(Stop(epoch=99))
            assert await peer.reader.read() == b""
        async with connected(rig) as peer:
            await peer.hear()
            peer.say(cast("Greeting", Stop(epoch=99)))  # without a greeting
            assert isinstance(await peer.hear(), Refused)
        assert rig.is_untouched


@pytest.mark.asyncio
async def test_a_proof_that_was_heard_is_none_for_another_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        async with connected(rig) as peer:
            hello = await peer.hear()
            assert isinstance(hello, Hello)
            heard = Proof(nonce="n", proof=proof(job_key(rig.paths), TASK, hello.nonce, "n"))
            peer.say(heard)
            assert isinstance(await peer.hear(), Welcome)
        async with connected(rig) as peer:
            await peer.hear()
            peer.say(heard)
            assert isinstance(await peer.hear(), Refused)


@pytest.mark.asyncio
async def test_a_newer_driver_is_let_in_although_the_key_was_drawn_anew(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig, connected(rig) as peer:
        (rig.paths.directory.parent / ".container-key").unlink()
        assert isinstance(await peer.greet(job_key(rig.paths)), Welcome)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_greeted", [False, True], ids=["greeting", "request"])
async def test_a_request_that_is_too_long_is_refused_before_it_is_read(
    tmp_path: Path, *, is_greeted: bool
) -> None:
    async with serving(tmp_path) as rig, connected(rig) as peer:
        if is_greeted:
            await peer.greet(job_key(rig.paths))
            limit = MAX_FRAME_BYTES
        else:
            await peer.hear()
            limit = 4096
        peer.writer.write((limit + 1).to_bytes(4))  # and not one byte more
        refused = await peer.answer()
        assert isinstance(refused, Refused)
        assert f"bytes={limit + 1} limit_bytes={limit}" in refused.message
        assert rig.is_untouched


@pytest.mark.asyncio
@pytest.mark.parametrize("is_greeted", [False, True], ids=["greeting", "request"])
async def test_a_task_that_falls_silent_is_dropped(tmp_path: Path, *, is_greeted: bool) -> None:
    async with serving(tmp_path) as rig, connected(rig) as peer:
        if is_greeted:
            await peer.greet(job_key(rig.paths))
            peer.writer.write(b"\0\0\0\7half")
        else:
            await peer.hear()
        await until(lambda: rig.server._connections == 1)
        assert rig.clock.asked == [30.0]
        rig.clock.rings.set()
        with pytest.raises((EOFError, ConnectionError)):
            await peer.hear()
        await until(lambda: rig.server._connections == 0)


@pytest.mark.asyncio
async def test_connections_beyond_the_limit_are_closed_and_those_before_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MAX_CONNECTIONS", 1)
    async with serving(tmp_path) as rig:
        async with connected(rig) as first:
            hello = await first.hear()
            async with connected(rig) as second:
                with pytest.raises((EOFError, ConnectionError)):
                    await second.hear()
            assert isinstance(hello, Hello)
            own = proof(job_key(rig.paths), TASK, hello.nonce, "n")
            first.say(Proof(nonce="n", proof=own))
            assert isinstance(await first.hear(), Welcome)
            first.say(submit_versions())
            assert isinstance(await first.answer(), Done)
        await until(lambda: rig.server._connections == 0)
        async with connected(rig) as third:
            assert isinstance(await third.hear(), Hello)


def test_the_key_is_drawn_once_for_its_user_alone(tmp_path: Path) -> None:
    paths, other = paths_in(tmp_path), SidecarPaths(tmp_path / "container-2")
    key = job_key(paths)
    path = tmp_path / ".container-key"
    assert (len(key), job_key(paths), job_key(other)) == (32, key, key)
    assert path.stat().st_mode & 0o777 == 0o600
    for spoil in (lambda: path.chmod(0o644), lambda: path.write_bytes(key[:5])):
        spoil()
        drawn = job_key(paths)
        assert drawn != key
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (drawn, 0o600)


@needs_root
def test_a_key_that_another_user_has_planted_is_refused(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    path = tmp_path / ".container-key"
    path.write_bytes(b"x" * 32)
    os.chown(path, OTHER_USER, OTHER_USER)
    with pytest.raises(ConfigError, match=f"path={path} owner={OTHER_USER}"):
        job_key(paths)


@pytest.fixture
def shared_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with shared_directory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", str(directory))
        yield directory


@needs_root
@pytest.mark.asyncio
async def test_another_user_is_refused_who_can_reach_the_socket(
    tmp_path: Path, shared_temporary: Path
) -> None:
    async with serving(tmp_path) as rig:
        for path in (rig.paths.socket, rig.paths.socket.parent, rig.paths.socket.parent.parent):
            assert path.stat().st_mode & 0o077 == 0 or path == rig.paths.socket
            path.chmod(0o777)  # the mode of the files does not keep other users out any more
        told = await asyncio.get_running_loop().run_in_executor(
            None,
            run_as_other_user,
            "import socket",
            "s = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nprint(s.recv(99))",
            rig.paths.socket,
        )
        assert told == "b''\n"
        assert rig.is_untouched


@needs_root
@pytest.mark.parametrize("owner", [0, OTHER_USER - 1], ids=["root", "a third user"])
def test_a_directory_of_sockets_that_another_user_has_made_is_refused_with_a_hint(
    shared_temporary: Path, owner: int
) -> None:
    squatted = shared_temporary / f"statekeep-{OTHER_USER}"
    squatted.mkdir(mode=0o700)
    os.chown(squatted, owner, owner)
    told = run_as_other_user(
        "import tempfile\nfrom pathlib import Path\nfrom types import SimpleNamespace\n"
        "from statekeep.errors import ConfigError\nfrom statekeep.spark.sidecar import client\n"
        "from statekeep.spark.sidecar.paths import SidecarPaths",
        """
tempfile.tempdir = sys.argv[1]
paths = SidecarPaths(Path(sys.argv[1]) / "local" / "job" / "sidecar")
client.ask_to_stop(paths, SimpleNamespace(session="a1"), 1)
try:
    client._connect(paths, SimpleNamespace(session="b2"))
except ConfigError as exc:
    print(exc)
""",
        shared_temporary,
    )
    assert f"directory={squatted}" in told
    assert "hint: set TMPDIR to a directory of this user whose path has at most" in told


@needs_root
def test_a_socket_at_which_another_user_listens_is_refused(
    tmp_path: Path, shared_temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = SidecarPaths(tmp_path / "sidecar")
    with socket.socket(socket.AF_UNIX) as listener:
        paths.socket.parent.mkdir(parents=True)
        listener.bind(str(paths.socket))
        os.seteuid(OTHER_USER)
        try:
            listener.listen()  # whose socket it is, the system notes at this moment
        finally:
            os.seteuid(0)
        with pytest.raises(ConfigError, match=f"socket={paths.socket} owner={OTHER_USER}"):
            client.ask_to_stop(paths, spec_in(tmp_path), epoch=1)
