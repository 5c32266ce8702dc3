"""The job in a terminal: once without a terminal, and until q is pressed else."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager

from cli_kit import TASK, CommandLine
from page_kit import fold_of, made_history
from rich.console import Console

from statekeep.checkpoint.event_log import Event
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import AbortRecord
from statekeep.cli.page.page import page
from statekeep.cli.top import bars, view
from statekeep.inspection.history import JobHistory
from statekeep.inspection.history_fold import HistoryFold

LOG = f"--task '{TASK}'"


def shown(commits: int, problem: str = "") -> str:
    return "\n".join(lines_of(made_history(commits), problem))


def lines_of(history: JobHistory, problem: str = "") -> list[str]:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(view(history, problem))
    return captured.get().splitlines()


def test_a_pipe_gets_it_once(statekeep: CommandLine) -> None:
    result = statekeep(f"top {LOG}")
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("orders  ")
    assert sum("committed" in line for line in lines) == 4
    assert [line.split()[:2] for line in lines if line.startswith(("near", "far"))] == [
        ["near", "whole"],
        ["far", "whole"],
    ]


def test_programs_get_the_newest_attempts(statekeep: CommandLine) -> None:
    found = statekeep(f"top --json {LOG}").json
    assert found["job"] == "orders"
    assert len(found["attempts"]) == 4
    assert found["findings"] == [
        {"level": "good", "text": "nothing is wrong by the records", "remedy": ""}
    ]


def test_a_long_history_fits_a_screen() -> None:
    text = shown(2_000, "no answer")
    assert len(text.splitlines()) < 40
    assert "no answer" in text
    assert "failed" in text


def test_a_job_that_has_done_nothing_yet_is_shown() -> None:
    assert "no commit" in shown(0)


def test_a_backend_is_whole_only_where_a_commit_says_so() -> None:
    began = Event(
        epoch=1,
        sequence=0,
        time_ms=1,
        kind="job-initialised",
        details={"backends": ["near", "far"]},
    )
    history = fold_of([began]).history("flights", LogView(), 1)
    lines = [line.split("  ") for line in lines_of(history)]
    assert [
        [cell.strip() for cell in line if cell][:3] for line in lines if line[0] in {"near", "far"}
    ] == [["near", "not recorded", "not recorded"], ["far", "not recorded", "not recorded"]]
    assert "whole" not in page(history)
    assert 'class="good">not recorded' not in page(history)


def test_an_attempt_without_a_time_says_so() -> None:
    fold = HistoryFold()
    fold.take_record(
        0, AbortRecord(epoch=1, nonce="v", attempt_epoch=1, attempt=4, reason="timed out")
    )
    row = next(
        line for line in lines_of(fold.history("flights", LogView(), 1)) if "aborted  " in line
    )
    assert row.startswith("not r")


def test_bars_grow_with_the_values() -> None:
    assert bars([0, 1, 2, 4]) == "▁▃▅█"
    assert bars([0.0]) == "▁"
    assert len(bars([1.0] * 100)) == 60


def test_a_terminal_is_renewed_until_q_is_pressed_and_is_then_as_before(
    statekeep: CommandLine,
) -> None:
    with in_a_terminal(statekeep) as (process, terminal):
        before = termios.tcgetattr(terminal)
        seen = read_until(terminal, "slowest tasks")
        assert "\x1b[?1049h" in seen  # a screen of its own
        while_it_runs = termios.tcgetattr(terminal)
        os.write(terminal, b"xq")
        seen += read_until(terminal, "\x1b[?1049l")
        assert process.wait(20) == 0
        assert re.findall(r"(?<!\r)\n", seen) == []  # else the lines become stairs
        assert while_it_runs[:3] == before[:3]
        assert while_it_runs[3] & (termios.ECHO | termios.ICANON) == 0
        assert termios.tcgetattr(terminal) == before


def test_a_terminal_is_as_before_after_an_end_from_outside(statekeep: CommandLine) -> None:
    with in_a_terminal(statekeep) as (process, terminal):
        before = termios.tcgetattr(terminal)
        read_until(terminal, "slowest tasks")
        process.terminate()
        seen = read_until(terminal, "\x1b[?1049l")
        assert "\x1b[?25h" in seen  # the cursor
        assert process.wait(20) == 0
        assert termios.tcgetattr(terminal) == before


@contextmanager
def in_a_terminal(statekeep: CommandLine) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command in a terminal; gives its other end."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "statekeep.cli", "top", "--task", TASK]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        [*command, "--config", str(statekeep.config)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as process:
        try:
            yield process, ours
        finally:
            process.kill()
    os.close(theirs)
    os.close(ours)


def read_until(terminal: int, text: str) -> str:
    seen = b""
    while text not in seen.decode(errors="replace"):
        ready, _, _ = select.select([terminal], [], [], 20)
        assert ready, seen.decode(errors="replace")
        seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")
