"""A process that is told to end stops its queries first, and then does end."""

import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import signal, sys, threading
from statekeep.spark.termination import termination

class Query:
    isActive = True

    def stop(self):
        print("stopping", flush=True)
        {stop}
        print("stopped", flush=True)

{before}
termination.stop_before_end(Query(), {shutdown_ms})
print("running", flush=True)
threading.Event().wait()
"""


def start(
    stop: str = "pass", before: str = "", shutdown_ms: int = 60_000
) -> "subprocess.Popen[bytes]":
    program = _PROGRAM.format(stop=stop, before=before, shutdown_ms=shutdown_ms)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert read_line(process) == b"running\n"
    return process


def read_line(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def end_of(process: "subprocess.Popen[bytes]") -> tuple[bytes, int]:
    output, _ = process.communicate(timeout=20)
    return output, process.returncode


def test_a_query_that_has_ended_is_let_go_of_when_another_one_starts() -> None:
    before = "old = Query(); old.isActive = False; termination.stop_before_end(old, 0)"
    process = start(before=before)
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (b"stopping\nstopped\n", -signal.SIGTERM)


def test_the_query_is_stopped_before_the_signal_has_its_effect() -> None:
    process = start()
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (b"stopping\nstopped\n", -signal.SIGTERM)


def test_a_second_signal_ends_the_process_at_once() -> None:
    process = start(stop="threading.Event().wait()")
    process.send_signal(signal.SIGTERM)
    assert read_line(process) == b"stopping\n"
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (b"", -signal.SIGTERM)


def test_a_query_that_does_not_stop_is_waited_for_no_longer_than_it_may_take() -> None:
    before = "import statekeep.spark.termination as t; t._MARGIN_S = 0.0"
    process = start(stop="threading.Event().wait()", before=before, shutdown_ms=50)
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (b"stopping\n", -signal.SIGTERM)


@pytest.mark.parametrize(
    "stop", ["raise OSError('no JVM')", "raise SystemExit"], ids=["an error", "an exit"]
)
def test_a_query_that_fails_to_stop_does_not_keep_the_process(stop: str) -> None:
    process = start(stop=stop)
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (b"stopping\n", -signal.SIGTERM)


def test_a_handler_of_the_program_is_left_alone() -> None:
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    process = start(before=before)
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (b"", 3)
