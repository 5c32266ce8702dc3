"""A reader who follows docs/how-to/move-state.md step by step, for tests of the page."""

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeep.cli import app

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "move-state.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = ["Step 1", "Step 2", "Step 3", "Step 4"]


class Reader:
    """A reader who follows the page, in a directory of their own.

    Attributes:
        settings: What stands in job.properties now.
        runs: How often job.py was started.
        places: What the backends are that the page calls ``old`` and ``new``.
        own: What stands in job.properties beside what the page says, whatever the step.
    """

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        places: dict[str, dict[str, str]],
    ) -> None:
        self.settings: dict[str, str] = {}
        self.own: dict[str, str] = {}
        self.runs = 0
        self._directory = directory
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.places = places
        monkeypatch.chdir(directory)

    def follow(self, *sections: str) -> None:
        """Do what the sections say whose headings begin so, in the order of the page."""
        for language, text in blocks(*sections):
            if language == "python":
                Path("job.py").write_text(text, encoding="utf-8")
            elif language == "properties":
                self.set(**dict(line.split("=", 1) for line in text.splitlines()))
            elif language == "console":
                for line in text.splitlines():
                    self.run(line.removeprefix("$ "))

    def go_back(self, step: int) -> None:
        """Follow the page up to a step, and from there the way back to the settings of before."""
        before = dict(self.settings)
        seen: list[dict[str, str]] = []
        for heading in STEPS[:step]:
            self.follow(heading)
            seen.append(dict(self.settings))
        if step == 3:  # `old` has to get the newest state again first
            self.set(**seen[1])
            self.run("python job.py")
        self.settings.clear()
        self.set(**before)

    def set(self, **settings: str) -> None:
        """Change lines of job.properties."""
        self.settings |= settings
        for name, place in self.places.items():
            if f"backends.{name}.factory" in settings:
                self.settings = {
                    key: value
                    for key, value in self.settings.items()
                    if not key.startswith(f"backends.{name}.")
                }
                self.settings |= {
                    f"backends.{name}.{key}": value.format(name=name)
                    for key, value in place.items()
                }
        # A backend that is not listed has no settings: the page says that they may go.
        settings = self.settings | self.own
        lines = [f"{key}={value}" for key, value in settings.items() if self._is_used(key)]
        text = "\n".join(lines).replace("/srv", str(self._directory))
        Path("job.properties").write_text(text, encoding="utf-8")

    def run(self, line: str) -> None:
        """Run one command, which must end well."""
        words = shlex.split(line)
        if words == ["python", "job.py"]:
            self.runs += 1
            runpy.run_path("job.py", run_name="__main__")
            assert self._capsys.readouterr().out.split() == [str(10 * self.runs)]
            return
        assert words[0] == "statekeep"
        self._monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as exit_info:
            app.main()
        captured = self._capsys.readouterr()
        assert exit_info.value.code == 0, (line, captured)

    def _is_used(self, key: str) -> bool:
        parts = key.split(".")
        if parts[0] != "backends" or parts[1] == "third":
            return True
        return any(
            parts[1] in value.split(",")
            for name, value in self.settings.items()
            if name.endswith("factories") or name == "job.log.backend"
        )


def blocks(*sections: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of each block of code in the sections, in order."""
    heading = ""
    for match in BLOCK.finditer(PAGE):
        if match[1]:
            heading = match[1]
        elif heading.startswith(sections):
            yield match[2], match[3]
