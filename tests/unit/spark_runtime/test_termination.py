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
        self.isActive = False
        print("stopped", flush=True)

{before}
termination.stop_before_end(Query(), {shutdown_ms})
print("running", flush=True)
{main}
"""


def start(
    stop: str = "pass",
    before: str = "",
    shutdown_ms: int = 60_000,
    main: str = "threading.Event().wait()",
) -> "subprocess.Popen[bytes]":
    # A shell has background processes ignore Ctrl-C, and Python then sets no handler of its own.
    default = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = _PROGRAM.format(
        stop=stop, before=f"{default}\n{before}", shutdown_ms=shutdown_ms, main=main
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # `communicate` does not see what a read of a line has buffered beyond it
    )
    assert read_line(process) == b"running\n"
    return process


def read_line(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def end_of(process: "subprocess.Popen[bytes]") -> tuple[bytes, int]:
    output, _, status = whole_end_of(process)
    return output, status


def whole_end_of(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes, int]:
    output, errors = process.communicate(timeout=20)
    return output, errors, process.returncode


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


def test_ctrl_c_ends_a_program_with_one_line_and_no_stack() -> None:
    process = start()
    process.send_signal(signal.SIGINT)
    output, errors, status = whole_end_of(process)
    assert (output, status) == (b"stopping\nstopped\n", -signal.SIGINT)
    assert errors == b"Ctrl-C: what was delivered is committed first: queries=1\n"


def test_one_ctrl_c_that_comes_twice_is_one() -> None:
    process = start(stop="threading.Event().wait(1)")
    process.send_signal(signal.SIGINT)
    assert read_line(process) == b"stopping\n"
    process.send_signal(signal.SIGINT)
    output, _, status = whole_end_of(process)
    assert (output, status) == (b"stopped\n", -signal.SIGINT)


def test_a_second_ctrl_c_ends_the_program_at_once() -> None:
    process = start(
        # Python cannot end while a thread writes by `print`.
        stop="os.write(1, b'waiting\\n'); threading.Event().wait()",
        before="import os; import statekeep.spark.termination as t; t._ONE_KEY_S = 0.0",
    )
    process.send_signal(signal.SIGINT)
    assert read_line(process) == b"stopping\n"
    assert read_line(process) == b"waiting\n"
    process.send_signal(signal.SIGINT)
    output, errors, status = whole_end_of(process)
    assert (output, status) == (b"", -signal.SIGINT)
    assert b"\nKeyboardInterrupt\n" in errors


def test_a_stop_after_ctrl_c_may_need_what_the_main_thread_holds() -> None:
    process = start(
        stop="lock.acquire()",
        before="lock = threading.Lock()",
        main="with lock: signal.raise_signal(signal.SIGINT)\nthreading.Event().wait()",
    )
    assert end_of(process) == (b"stopping\nstopped\n", -signal.SIGINT)


def test_ctrl_c_waits_up_to_a_limit_for_a_query_that_does_not_stop() -> None:
    before = "import statekeep.spark.termination as t; t._MARGIN_S = 0.0"
    process = start(stop="threading.Event().wait()", before=before, shutdown_ms=50)
    process.send_signal(signal.SIGINT)
    assert end_of(process) == (b"stopping\n", -signal.SIGINT)


def test_a_query_whose_end_is_awaited_ends_by_the_interrupt() -> None:
    process = start(
        stop="ended.set()",
        before="ended = threading.Event()",
        main="ended.wait(); termination.await_interrupt(); print('goes on')",
    )
    process.send_signal(signal.SIGINT)
    assert end_of(process) == (b"stopping\nstopped\n", -signal.SIGINT)


def test_a_program_that_falls_off_its_end_says_which_queries_it_cuts_off() -> None:
    _, errors, status = whole_end_of(start(main="pass"))
    assert b"the program has ended while queries run: queries=1" in errors
    assert b"end with awaitTermination() or stop()" in errors
    assert status == 0


def test_a_program_whose_queries_have_ended_says_nothing_at_its_end() -> None:
    _, errors, status = whole_end_of(start(main="termination._queries[0].isActive = False"))
    assert (errors, status) == (b"", 0)
