"""The programs and commands of README.md, as they are printed there."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^## ([^\n]+)$|^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def printed() -> list[tuple[str, str, str]]:
    """Return heading, language and text of every block of code, in order; no heading: empty."""
    heading, found = "", list[tuple[str, str, str]]()
    for match in _BLOCK.finditer(PAGE):
        if match[1]:
            heading = match[1]
        else:
            found.append((heading, match[2], match[3]))
    return found


def block(heading: str, language: str) -> str:
    """Return the only block of a language below a heading."""
    (text,) = [text for *place, text in printed() if place == [heading, language]]
    return text


def commands(heading: str) -> list[str]:
    """Return the command lines of a console block."""
    return [line.removeprefix("$ ") for line in block(heading, "console").splitlines()]
