"""How a task asks its container: patience, time-outs, successors; and the container's lock."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from container_process_kit import hand_over, place_in, spec_in

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
    encode,
)


@contextmanager
def container(place: ContainerPlace, answers: list[Answer | None]) -> Iterator[list[Request]]:
    """Answer one connection after the other; None keeps a task waiting."""
    requests: list[Request] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(place.socket))
    listener.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                requests.append(decode_request(stream.readline()))
                if answer is None:
                    stream.read()
                else:
                    stream.write(encode(answer))
                    stream.flush()

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
    monkeypatch.setattr(client, "_READ_TIMEOUT_S", 0.01)
    with (
        container(place_in(tmp_path), [None]),
        pytest.raises(RetriableError, match="lost the container"),
    ):
        client.ask(place_in(tmp_path), spec_in(tmp_path), hand_over())


def test_the_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as leaving, path.open("w") as mine:
        assert take_lock(leaving)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                leaving.close()

        assert take_lock(mine, pause)
    assert len(pauses) == 3


def test_the_lock_is_given_up_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as living, path.open("w") as mine:
        assert take_lock(living)
        pauses: list[float] = []
        assert not take_lock(mine, pauses.append)
    assert sum(pauses) == pytest.approx(30)
