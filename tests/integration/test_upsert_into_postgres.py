"""`sk.upsert_sink` on a real PostgreSQL: drivers that are killed, stopped, or come too late."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import postgres_driver
import psycopg
import pytest
from postgres_driver import deliver, token_of
from servers.postgres import postgres
from servers.process import required

import statekeep as sk
from statekeep.spark.fenced_sinks import FENCE_TABLE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SHORT = "?options=-c%20idle_in_transaction_session_timeout%3D300ms"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with required(postgres()) as uri:
        yield uri


@pytest.fixture
def uri(server: str) -> str:
    with psycopg.connect(server) as connection:
        connection.execute("DROP TABLE IF EXISTS statekeep_fence, totals")
        connection.execute(FENCE_TABLE)
        connection.execute("CREATE TABLE totals (key TEXT PRIMARY KEY, n BIGINT)")
    return server


def table(uri: str) -> dict[str, int]:
    with psycopg.connect(uri) as connection:
        return dict(connection.execute("SELECT key, n FROM totals").fetchall())


def strike(
    uri: str, epoch: int, rows: dict[str, int], moment: str, name: str
) -> subprocess.Popen[str]:
    """Start a driver that delivers batch 1 and is struck at a moment of its commit."""
    arguments = [uri, str(epoch), "1", json.dumps(rows), moment, name]
    command = [sys.executable, postgres_driver.__file__, *arguments]
    folders = [str(Path(sk.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("moment", "left"), [("before", {"a": 1}), ("after", {"a": 2, "b": 1})], ids=["before", "after"]
)
def test_a_driver_killed_at_its_commit_leaves_the_whole_batch_or_nothing(
    uri: str, moment: str, left: dict[str, int]
) -> None:
    deliver(lambda: psycopg.connect(uri), 1, 0, {"a": 1})
    driver = strike(uri, 1, {"a": 2, "b": 1}, moment, "SIGKILL")
    driver.communicate()
    assert driver.returncode == -signal.SIGKILL
    assert table(uri) == left
    deliver(lambda: psycopg.connect(uri), 2, 1, {"a": 2, "b": 1})  # by the next driver, again
    assert table(uri) == {"a": 2, "b": 1}


def test_a_driver_stopped_in_its_transaction_loses_it_to_the_next_one(uri: str) -> None:
    driver = strike(uri + SHORT, 1, {"a": 1}, "before", "SIGSTOP")
    _, status = os.waitpid(driver.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    deliver(
        lambda: psycopg.connect(uri), 2, 1, {"a": 2}
    )  # waits for the lock until the server ends it
    driver.send_signal(signal.SIGCONT)
    _, said = driver.communicate()
    assert driver.returncode != 0
    assert "idle-in-transaction timeout" in said
    assert table(uri) == {"a": 2}


def in_turn(uri: str, first: int, second: int) -> list[Exception]:
    """Let one driver begin its transaction, another one wait for it, then the first one commit."""
    errors: list[Exception] = []

    def come_second() -> None:
        try:
            deliver(lambda: psycopg.connect(uri), second, 1, {"a": second})
        except sk.TaskFencedError as exc:
            errors.append(exc)

    with psycopg.connect(uri) as connection:
        sk.fence_transaction(connection, token_of(first, 1), paramstyle="format")
        connection.execute("INSERT INTO totals VALUES ('a', %s)", [first])
        waiting = threading.Thread(target=come_second)
        waiting.start()
        with psycopg.connect(uri, autocommit=True) as other:
            while not other.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
                assert waiting.is_alive()
    waiting.join()
    return errors


def test_a_newer_driver_waits_for_an_older_one_and_writes_after_it(uri: str) -> None:
    assert in_turn(uri, 1, 2) == []
    assert table(uri) == {"a": 2}


def test_an_older_driver_that_waited_for_a_newer_one_is_refused(uri: str) -> None:
    (error,) = in_turn(uri, 2, 1)
    assert "a newer driver has written to the database" in str(error)
    assert table(uri) == {"a": 2}
