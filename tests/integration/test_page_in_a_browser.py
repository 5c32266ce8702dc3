"""The page of a job in a real browser: Chromium, headless and without a network."""

import asyncio
import shutil
import subprocess
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from page_kit import HOSTILE, Parts, hostile_history, made_history

from statekeep.cli.page.page import page
from statekeep.cli.page.server import serving
from statekeep.cli.report import live_script

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BROWSER = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--enable-logging=stderr", "--log-level=0", "--window-size=1040,2000"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def opened(profile: Path, address: str, *options: str) -> tuple[str, list[str]]:
    """Open a page; return the document as it is then, and what the browser complains of."""
    browser = shutil.which("chromium")
    assert browser is not None, "Chromium is missing; Debian: apt-get install chromium"
    done = subprocess.run(
        [browser, *BROWSER, f"--user-data-dir={profile}", *options, "--dump-dom", address],
        capture_output=True,
        check=True,
        text=True,
        timeout=100,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def written(directory: Path, text: str) -> str:
    path = directory / "page.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


def corner_of(picture: Path) -> str:
    """Return the colour of the first pixel of a PNG picture, which no filter of its row changes."""
    data, packed, at = picture.read_bytes(), b"", 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + size]
        at += 12 + size
    return zlib.decompress(packed)[1:4].hex()


@pytest.mark.parametrize(
    ("scheme", "paper"), [("0", "0e1116"), ("1", "ffffff")], ids=["dark", "light"]
)
def test_the_page_is_shown_in_the_colours_of_the_reader_without_a_complaint(
    tmp_path: Path, scheme: str, paper: str
) -> None:
    address = written(tmp_path, page(made_history(300)))
    picture = tmp_path / "page.png"
    colours = f"--blink-settings=preferredColorScheme={scheme}"
    document, complaints = opened(tmp_path, address, colours, f"--screenshot={picture}")
    assert complaints == []
    assert document.count("<figure") == 6
    assert picture.stat().st_size > 50_000
    assert corner_of(picture) == paper


def test_a_hostile_log_runs_nothing(tmp_path: Path) -> None:
    document, complaints = opened(tmp_path, written(tmp_path, page(hostile_history())))
    assert complaints == []
    parts = Parts(document)
    assert {"script", "img"}.isdisjoint(name for name, _ in parts.elements)
    assert parts.inside["h1"] == [HOSTILE]


def test_a_script_that_found_its_way_in_would_be_stopped_by_the_policy(tmp_path: Path) -> None:
    attack = "<script>document.title = 'run'</script><img src='http://127.0.0.1:9/x'></main>"
    text = page(made_history(5)).replace("</main>", attack)
    document, complaints = opened(tmp_path, written(tmp_path, text))
    assert "<title>flights - Statekeep</title>" in document
    assert sum("Content Security Policy" in line for line in complaints) == 2


def test_ten_thousand_commits_are_shown_at_once(tmp_path: Path) -> None:
    """As quickly as a page with nothing on it, but for a second; of three times each the least counts."""
    large = page(made_history(10_000, tasks=1))
    seconds: dict[str, float] = {}
    for text in ("<!doctype html><title>nothing</title>", large) * 3:
        address = written(tmp_path, text)
        began = time.perf_counter()
        opened(tmp_path, address)
        took = time.perf_counter() - began
        seconds[text] = min(took, seconds.get(text, took))
    without, with_commits = seconds.values()
    assert with_commits < without + 1


@pytest.mark.asyncio
async def test_a_page_that_is_served_renews_itself_and_keeps_what_is_open(tmp_path: Path) -> None:
    commits: list[int] = []

    async def render() -> str:
        commits.append(10 + len(commits))
        text = page(made_history(commits[-1]), script=live_script())
        return text if len(commits) > 1 else text.replace("<details", "<details open")

    async with serving(render, 0) as address:
        options: Sequence[str] = ("--virtual-time-budget=7000",)
        document, complaints = await asyncio.to_thread(opened, tmp_path, address, *options)
    assert complaints == []
    assert len(commits) == 2
    assert f"<dt>commits on record</dt><dd>{commits[-1]}</dd>" in document
    assert 'open=""' in document
