"""How a task asks its sidecar: time-outs, successors; and the sidecar's lock."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sidecar_process_kit import greet_task, paths_in, spec_in, submit_versions

from statekeep.errors import RetriableError
from statekeep.spark.sidecar import client
from statekeep.spark.sidecar.launch import has_ended, take_lock
from statekeep.spark.sidecar.paths import SidecarPaths
from statekeep.spark.sidecar.protocol import (
    STALE_SIDECAR,
    STOPPING_SIDECAR,
    Answer,
    Done,
    Refused,
    Request,
    decode_request,
    encode_frame,
    read_frame_from,
)

SILENCE = b"silence"
"""Keeps a task waiting."""
DEATH = b""
"""Ends the connection without an answer."""
HALF = encode_frame(Done())[:9]
"""All that a sidecar wrote before it died."""


@contextmanager
def sidecar(paths: SidecarPaths, answers: list[Answer | bytes]) -> Iterator[list[Request]]:
    """Answer one connection after the other."""
    requests: list[Request] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(paths.socket))
    listener.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                greet_task(connection, stream, paths)
                requests.append(decode_request(read_frame_from(stream)))
                if answer == SILENCE:
                    stream.read()
                else:
                    connection.sendall(
                        answer if isinstance(answer, bytes) else encode_frame(answer)
                    )

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield requests
        thread.join()
    finally:
        listener.close()
        paths.socket.unlink()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_SUCCESSOR_PAUSE_S", 0)


def test_a_request_carries_the_digest_of_the_settings(tmp_path: Path) -> None:
    paths, spec = paths_in(tmp_path), spec_in(tmp_path)
    with sidecar(paths, [Done()]) as requests:
        client.ask(paths, spec, submit_versions())
    assert [request.spec_digest for request in requests] == [spec.digest]


@pytest.mark.parametrize("error", [STALE_SIDECAR, STOPPING_SIDECAR])
def test_a_sidecar_that_leaves_is_asked_again_until_its_successor_answers(
    tmp_path: Path, error: str
) -> None:
    leaving = Refused(error=error, message="leaving")
    with sidecar(paths_in(tmp_path), [leaving, leaving, Done(version="v")]) as requests:
        assert client.ask(paths_in(tmp_path), spec_in(tmp_path), submit_versions()).version == "v"
    assert len(requests) == 3


def test_a_sidecar_that_does_not_leave_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_SUCCESSOR_ROUNDS", 2)
    leaving = Refused(error=STOPPING_SIDECAR, message="leaving")
    with (
        sidecar(paths_in(tmp_path), [leaving, leaving]),
        pytest.raises(RetriableError, match="leaving"),
    ):
        client.ask(paths_in(tmp_path), spec_in(tmp_path), submit_versions())


def test_any_other_refusal_is_raised_at_once(tmp_path: Path) -> None:
    with (
        sidecar(paths_in(tmp_path), [Refused(error="StateBackupError", message="no")]),
        pytest.raises(client.SidecarError, match="no"),
    ):
        client.ask(paths_in(tmp_path), spec_in(tmp_path), submit_versions())


def test_a_sidecar_that_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_READ_TIMEOUT_S", 0.5)
    with (
        sidecar(paths_in(tmp_path), [SILENCE]) as requests,
        pytest.raises(RetriableError, match=r"did not answer.* host=.* log="),
    ):
        client.ask(paths_in(tmp_path), spec_in(tmp_path), submit_versions())
    assert len(requests) == 1


def test_the_successor_of_a_sidecar_that_died_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sidecar(paths_in(tmp_path), [DEATH, HALF, Done(version="v")]) as requests:
        assert client.ask(paths_in(tmp_path), spec_in(tmp_path), submit_versions()).version == "v"
    assert requests == [requests[0]] * 3
    assert [record.getMessage()[-5:] for record in caplog.records] == ["try=1", "try=2"]


def test_sidecars_that_die_over_a_request_are_given_up_soon(tmp_path: Path) -> None:
    with (
        sidecar(paths_in(tmp_path), [DEATH] * 3),
        pytest.raises(RetriableError, match=r"sidecars die .*tries=3 host=.* log=") as caught,
    ):
        client.ask(paths_in(tmp_path), spec_in(tmp_path), submit_versions())
    assert "lack of memory" in "".join(caught.value.hints)
    assert "without an answer" in str(caught.value.__cause__)


def test_a_successor_that_refuses_is_asked_once(tmp_path: Path) -> None:
    refusal = Refused(error="RestoreFailedError", message="out of reach")
    with (
        sidecar(paths_in(tmp_path), [DEATH, refusal]),
        pytest.raises(client.SidecarError, match="out of reach"),
    ):
        client.ask(paths_in(tmp_path), spec_in(tmp_path), submit_versions())


def test_a_sidecar_that_leaves_is_waited_for_before_another_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_in(tmp_path)
    leaving = take_lock(paths)
    assert leaving is not None
    launched: list[bool] = []

    def launch(*given: Any) -> Any:
        launched.append(given[0].lock.exists())
        raise OSError("seen")

    monkeypatch.setattr(client, "_spawn", launch)
    timer = threading.Timer(0.1, leaving.leave)
    timer.start()
    with pytest.raises(OSError, match="seen"):
        client.ask(paths, spec_in(tmp_path), submit_versions())
    timer.join()
    assert launched == [True]
    assert not paths.lock.exists()


def test_sidecars_that_die_at_their_start_are_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_in(tmp_path)
    launched: list[str] = []

    def launch(*given: Any) -> subprocess.CompletedProcess[bytes]:
        launched.append("")
        return subprocess.CompletedProcess([], 7)

    monkeypatch.setattr(client, "_spawn", launch)
    with pytest.raises(RetriableError, match=r"does not start: .*launcher_status=7"):
        client.ask(paths_in(tmp_path), spec, submit_versions())
    assert len(launched) == 3


def test_a_stop_starts_no_sidecar_where_there_is_none(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    client.ask_to_stop(paths, spec_in(tmp_path), epoch=1)
    assert not paths.log.exists()


def test_a_stop_waits_until_the_sidecar_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_in(tmp_path)
    living = take_lock(paths)
    assert living is not None
    monkeypatch.setattr(client, "_LEAVE_TIMEOUT_S", 0.05)
    with sidecar(paths, [Done()]), pytest.raises(RetriableError, match="still works"):
        client.ask_to_stop(paths, spec_in(tmp_path), epoch=1)
    living.leave()
    with sidecar(paths, [Done()]) as requests:
        client.ask_to_stop(paths, spec_in(tmp_path), epoch=1)
    assert [request.epoch for request in requests] == [1]


def test_a_stop_does_not_wait_for_a_sidecar_that_boots_and_leaves_word_for_it(
    tmp_path: Path,
) -> None:
    paths, spec = paths_in(tmp_path), spec_in(tmp_path)
    booting = take_lock(paths)
    assert booting is not None
    assert not has_ended(paths, spec.session)
    client.ask_to_stop(paths, spec, epoch=1)
    assert has_ended(paths, spec.session)
    booting.leave()


def test_a_sidecar_that_takes_no_connection_is_given_up(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(paths.socket))
        listener.listen(0)
        waiting = client._try_connect(paths.socket)  # fills the queue
        assert waiting is not None
        with waiting, pytest.raises(RetriableError, match="takes no connection"):
            client._try_connect(paths.socket, timeout_s=0.1)


def test_a_sidecar_imports_what_its_executor_imports_before_what_the_driver_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["packages", "/both", "/shipped.zip"])
    spec = msgspec.structs.replace(spec_in(tmp_path), python_path=["/driver", "/both"])
    assert client.python_path(spec) == f"{tmp_path}/packages:/both:/shipped.zip:/driver"


def test_a_sidecar_is_started_though_the_working_directory_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "path", ["", "packages", "/both"])
    spec = msgspec.structs.replace(spec_in(tmp_path), python_path=["/driver"])
    assert client.python_path(spec) == "/both:/driver"
