"""The programs, settings and commands of README.md and the pages in docs/, as they are printed there."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^##+ ([^\n]+)$|^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def printed(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield heading, language and text of every block of code, in order; no heading: empty."""
    heading = ""
    for match in _BLOCK.finditer(text_of(page)):
        if match[1]:
            heading = match[1]
        else:
            yield heading, match[2], match[3]


def blocks(page: str, heading: str, language: str) -> list[str]:
    """Return the blocks of a language below a heading, in order."""
    return [text for *place, text in printed(page) if place == [heading, language]]


def block(page: str, heading: str, language: str) -> str:
    """Return the only block of a language below a heading."""
    (text,) = blocks(page, heading, language)
    return text


def commands(page: str, heading: str | None = None) -> list[str]:
    """Return the command lines of the console blocks below a heading, or of the whole page."""
    return [
        line.removeprefix("$ ")
        for found, language, text in printed(page)
        if language == "console" and heading in {None, found}
        for line in text.splitlines()
    ]
