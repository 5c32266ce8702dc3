"""Threads that are started as calls come, and of which a hung one can be left behind."""

import subprocess
import sys
import threading

import pytest

from statekeep.thread_pool import ThreadPool


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_a_call_returns_its_result_or_its_error() -> None:
    pool = ThreadPool(1, "plain")
    assert pool.submit(lambda: 1).result(10) == 1
    with pytest.raises(ValueError, match="invalid literal"):
        pool.submit(lambda: int("one")).result(10)
    assert pool.submit(lambda: 2).result(10) == 2
    pool.join()
    assert threads_named("plain") == []


def test_threads_are_started_when_all_others_have_work_up_to_the_limit() -> None:
    pool = ThreadPool(2, "growing")
    may_end = threading.Event()
    assert threads_named("growing") == []
    calls = [pool.submit(may_end.wait) for _ in range(2)]
    assert len(threads_named("growing")) == 2
    waits = pool.submit(lambda: "third")
    assert len(threads_named("growing")) == 2
    may_end.set()
    assert waits.result(10) == "third"
    assert all(call.result(10) for call in calls)
    pool.join()


def test_a_call_that_was_cancelled_before_its_turn_never_begins() -> None:
    pool = ThreadPool(1, "busy")
    may_end, has_begun = threading.Event(), threading.Event()
    pool.submit(may_end.wait)
    waiting = pool.submit(has_begun.set)
    assert waiting.cancel()
    may_end.set()
    pool.join()
    assert not has_begun.is_set()


def test_a_pool_that_has_ended_takes_no_call() -> None:
    pool = ThreadPool(1, "ended")
    pool.join()
    pool.join()
    with pytest.raises(RuntimeError, match="name=ended"):
        pool.submit(int)


def test_leaving_ends_the_idle_threads_and_waits_for_no_other() -> None:
    pool = ThreadPool(2, "left")
    may_end = threading.Event()
    hung = pool.submit(may_end.wait)
    pool.submit(int).result(10)
    pool.leave()
    assert not hung.done()
    may_end.set()
    assert hung.result(10)  # its end has no effect
    for thread in threads_named("left"):
        thread.join(10)
    assert threads_named("left") == []


@pytest.mark.parametrize(("way", "shows"), [("pass", "done"), ("pool.leave()", "")])
def test_the_interpreter_waits_for_calls_unless_they_were_left(way: str, shows: str) -> None:
    program = f"""
import sys, threading
from statekeep.thread_pool import ThreadPool

pool = ThreadPool(1, "last")
may_end = threading.Event()

def call():
    may_end.wait(2)
    print("done", flush=True)

pool.submit(call)
{way}
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=20, check=True, capture_output=True, text=True
    )
    assert ended.stdout.strip() == shows


def test_a_start_of_a_thread_that_ctrl_c_breaks_off_keeps_no_join_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = ThreadPool(3, "broken off")
    may_end = threading.Event()
    call = pool.submit(may_end.wait)
    start = threading.Thread.start

    def start_and_break_off(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", start_and_break_off)
        with pytest.raises(KeyboardInterrupt):
            pool.submit(int)
    other = pool.submit(may_end.wait)
    running = len(threads_named("broken off"))
    may_end.set()
    assert running == 2  # it has the one whose start was broken off
    assert call.result(10)
    assert other.result(10)
    joining = threading.Thread(target=pool.join, daemon=True)
    joining.start()
    joining.join(10)
    assert not joining.is_alive()
    assert threads_named("broken off") == []
