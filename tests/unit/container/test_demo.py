"""The demonstration: exact after a kill, and an exit code that says when it is not."""

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from statekeep import demo


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_the_demonstration_ends_with_an_exact_result(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    assert demo.demonstrate(tmp_path, console)
    assert isinstance(console.file, io.StringIO)
    story = console.file.getvalue()
    assert "killed by SIGKILL" in story
    assert "restored from          blob" in story
    assert "equal to the cent" in story


def test_a_result_that_differs_gives_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = demo.Report(0, demo.ORDERS, 2, 1.0, "blob", 1, 1)

    def run_worker(directory: Path, *, kill_after: int | None) -> demo.Report:
        (directory / "local").mkdir(exist_ok=True)
        return report

    async def read_result(directory: Path) -> Mapping[bytes, tuple[int, int]]:
        return demo.totals_of(range(demo.ORDERS - 1))

    monkeypatch.setattr(demo, "run_worker", run_worker)
    monkeypatch.setattr(demo, "read_result", read_result)
    assert demo.main([]) == 1
    assert "1 customers differ" in capsys.readouterr().out
