"""What is shown of a query's story, and to whom."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from statekeep.spark import narration


class Terminal:
    """A stderr that a person looks at."""

    def __init__(self, *, is_one: bool = True) -> None:
        self.written = ""
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.fixture(autouse=True)
def same_level_later() -> Iterator[None]:
    package = logging.getLogger("statekeep")
    level = package.level
    yield
    package.setLevel(level)


def begin(monkeypatch: pytest.MonkeyPatch, stderr: Terminal) -> None:
    """Be a program that has not set up logging; within the test, as pytest sets it up before."""
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("statekeep"), "handlers", [])


def say() -> None:
    logging.getLogger("statekeep.spark.query").info("commit is durable: batch=%d", 7)


def test_a_terminal_gets_each_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    begin(monkeypatch, terminal)
    narration.show()
    narration.show()
    say()
    assert terminal.written.endswith(" INFO statekeep: commit is durable: batch=7\n")
    assert terminal.written.count("\n") == 1


@pytest.mark.parametrize("modules", [{}, {"ipykernel": object()}], ids=["a file", "a notebook"])
def test_a_file_gets_no_lines_but_a_notebook_does(
    monkeypatch: pytest.MonkeyPatch, modules: dict[str, object]
) -> None:
    output = Terminal(is_one=False)
    begin(monkeypatch, output)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    narration.show()
    say()
    assert ("commit is durable" in output.written) == bool(modules)


def test_a_program_that_sets_up_logging_later_gets_no_line_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, own = Terminal(), Terminal()
    begin(monkeypatch, terminal)
    narration.show()
    logging.getLogger().addHandler(logging.StreamHandler(own))
    say()
    assert (terminal.written, own.written) == ("", "commit is durable: batch=7\n")


def test_a_program_that_has_set_a_level_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    begin(monkeypatch, terminal)
    logging.getLogger("statekeep").setLevel(logging.INFO)
    narration.show()
    say()
    assert terminal.written == ""


def test_the_import_alone_logs_nothing() -> None:
    program = "import logging, statekeep.spark; print(logging.getLogger('statekeep').handlers)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
