"""How a task asks its container: patience, time-outs, successors; and the container's lock."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from container_process_kit import greet_task, hand_over, place_in, spec_in

from statekeep.errors import RetriableError
from statekeep.spark.container import client
from statekeep.spark.container.launch import take_lock
from statekeep.spark.container.place import ContainerPlace
from statekeep.spark.container.protocol import (
    STALE_CONTAINER,
    STOPPING_CONTAINER,
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
"""All that a container wrote before it died."""


@contextmanager
def container(place: ContainerPlace, answers: list[Answer | bytes]) -> Iterator[list[Request]]:
    """Answer one connection after the other."""
    requests: list[Request] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(place.socket))
    listener.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                greet_task(connection, stream, place)
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
        place.socket.unlink()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_SUCCESSOR_PAUSE_S", 0)


def test_a_request_carries_the_digest_of_the_settings(tmp_path: Path) -> None:
    place, spec = place_in(tmp_path), spec_in(tmp_path)
    with container(place, [Done()]) as requests:
        client.ask(place, spec, hand_over())
    assert [request.spec_digest for request in requests] == [spec.digest]


@pytest.mark.parametrize("error", [STALE_CONTAINER, STOPPING_CONTAINER])
def test_a_container_that_leaves_is_asked_again_until_its_successor_answers(
    tmp_path: Path, error: str
) -> None:
    leaving = Refused(error=error, message="leaving")
    with container(place_in(tmp_path), [leaving, leaving, Done(version="v")]) as requests:
        assert client.ask(place_in(tmp_path), spec_in(tmp_path), hand_over()).version == "v"
    assert len(requests) == 3


def test_a_container_that_does_not_leave_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_SUCCESSOR_ROUNDS", 2)
    leaving = Refused(error=STOPPING_CONTAINER, message="leaving")
    with (
        container(place_in(tmp_path), [leaving, leaving]),
        pytest.raises(RetriableError, match="leaving"),
    ):
        client.ask(place_in(tmp_path), spec_in(tmp_path), hand_over())


def test_any_other_refusal_is_raised_at_once(tmp_path: Path) -> None:
    with (
        container(place_in(tmp_path), [Refused(error="StateBackupError", message="no")]),
        pytest.raises(client.ContainerError, match="no"),
    ):
        client.ask(place_in(tmp_path), spec_in(tmp_path), hand_over())


def test_a_container_that_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_READ_TIMEOUT_S", 0.5)
    with (
        container(place_in(tmp_path), [SILENCE]) as requests,
        pytest.raises(RetriableError, match=r"says nothing.* host=.* log="),
    ):
        client.ask(place_in(tmp_path), spec_in(tmp_path), hand_over())
    assert len(requests) == 1


def test_the_successor_of_a_container_that_died_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with container(place_in(tmp_path), [DEATH, HALF, Done(version="v")]) as requests:
        assert client.ask(place_in(tmp_path), spec_in(tmp_path), hand_over()).version == "v"
    assert requests == [requests[0]] * 3
    assert [record.getMessage()[-5:] for record in caplog.records] == ["try=1", "try=2"]


def test_containers_that_die_over_a_request_are_given_up_soon(tmp_path: Path) -> None:
    with (
        container(place_in(tmp_path), [DEATH] * 3),
        pytest.raises(RetriableError, match=r"containers die .*tries=3 host=.* log=") as caught,
    ):
        client.ask(place_in(tmp_path), spec_in(tmp_path), hand_over())
    assert "lack of memory" in "".join(caught.value.hints)
    assert "without an answer" in str(caught.value.__cause__)


def test_a_successor_that_refuses_is_asked_once(tmp_path: Path) -> None:
    refusal = Refused(error="RestoreFailedError", message="out of reach")
    with (
        container(place_in(tmp_path), [DEATH, refusal]),
        pytest.raises(client.ContainerError, match="out of reach"),
    ):
        client.ask(place_in(tmp_path), spec_in(tmp_path), hand_over())


def test_a_container_that_leaves_is_waited_for_before_another_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_in(tmp_path)
    leaving = take_lock(place)
    assert leaving is not None
    launched: list[bool] = []

    def launch(*given: Any) -> Any:
        launched.append(given[0].lock.exists())
        raise OSError("seen")

    monkeypatch.setattr(client, "_spawn", launch)
    timer = threading.Timer(0.1, leaving.leave)
    timer.start()
    with pytest.raises(OSError, match="seen"):
        client.ask(place, spec_in(tmp_path), hand_over())
    timer.join()
    assert launched == [True]
    assert not place.lock.exists()


def test_containers_that_die_at_their_start_are_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_in(tmp_path)
    launched: list[str] = []

    def launch(*given: Any) -> subprocess.CompletedProcess[bytes]:
        launched.append("")
        return subprocess.CompletedProcess([], 7)

    monkeypatch.setattr(client, "_spawn", launch)
    with pytest.raises(RetriableError, match=r"does not start: .*launcher_status=7"):
        client.ask(place_in(tmp_path), spec, hand_over())
    assert len(launched) == 3


def test_a_stop_starts_no_container_where_there_is_none(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    client.tell_to_stop(place, epoch=1)
    assert not place.log.exists()


def test_a_stop_waits_until_the_container_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_in(tmp_path)
    living = take_lock(place)
    assert living is not None
    monkeypatch.setattr(client, "_LEAVE_TIMEOUT_S", 0.05)
    with container(place, [Done()]), pytest.raises(RetriableError, match="still works"):
        client.tell_to_stop(place, epoch=1)
    living.leave()
    with container(place, [Done()]) as requests:
        client.tell_to_stop(place, epoch=1)
    assert [request.epoch for request in requests] == [1]


def test_a_stop_does_not_wait_for_a_container_that_boots(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    booting = take_lock(place)
    assert booting is not None
    wanted = [booting.is_wanted]
    client.tell_to_stop(place, epoch=1)
    wanted.append(booting.is_wanted)
    assert wanted == [True, False]
    booting.leave()
    assert not place.lock.exists()


def test_what_was_said_to_a_container_that_was_killed_is_not_for_the_next_one(
    tmp_path: Path,
) -> None:
    place = place_in(tmp_path)
    killed = take_lock(place)
    assert killed is not None
    client.tell_to_stop(place, epoch=1)
    killed.pass_on()
    successor = take_lock(place)
    assert successor is not None
    assert successor.is_wanted
    successor.leave()


def test_a_container_that_takes_no_connection_is_given_up(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(place.socket))
        listener.listen(0)
        waiting = client._try_connect(place.socket)  # fills the queue
        assert waiting is not None
        with waiting, pytest.raises(RetriableError, match="takes no connection"):
            client._try_connect(place.socket, timeout_s=0.1)
