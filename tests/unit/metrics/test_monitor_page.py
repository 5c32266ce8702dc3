"""docs/how-to/monitor.md and docs/reference/metrics.md: the programs run, the names are those of the code."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages_kit import printed, text_of

from statekeep.events import CommitFailed, CommitSkipped, EventSource
from statekeep.metrics.document import with_table

PAGE = "docs/how-to/monitor.md"


def program(heading: str) -> str:
    (found,) = [
        text for at, language, text in printed(PAGE) if (at, language) == (heading, "python")
    ]
    return found


def test_the_program_prints_metrics_and_spans(tmp_path: Path) -> None:
    path = tmp_path / "orders.py"
    path.write_text(program("OpenTelemetry"))
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=25, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("statekeep.commit.duration", "statekeep.requests", '"statekeep.upload"'):
        assert name in done.stdout


def test_the_listener_of_the_page_hears_of_failed_commits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {}
    exec(program("A listener of yours"), names)  # noqa: S102 - it is our own page
    listener = names["Alarm"]()
    source = EventSource("orders", "", 0)
    listener.on_event(CommitSkipped(), source)
    listener.on_event(CommitFailed("1-0", 4, "upload", "OSError: no room", 3), source)
    listener.close()
    said = "orders: the commit of batch 4 failed: OSError: no room\n"
    assert capsys.readouterr().out == said


def test_the_page_of_metrics_has_the_table_of_the_code() -> None:
    page = text_of("docs/reference/metrics.md")
    assert with_table(page) == page, "run python -m statekeep.metrics.document"
