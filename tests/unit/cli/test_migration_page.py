"""The walk-through in docs/migration.md: its code, settings and commands, run step by step."""

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeep.cli import app
from statekeep.errors import ConfigError

PAGE = (Path(__file__).parents[3] / "docs" / "migration.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = ["Step 1", "Step 2", "Step 3", "Step 4"]

PLACES = {
    "blob": {"factory": "blob", "uri": "file:///srv/{name}"},
    "hdfs": {"factory": "hdfs", "uri": "file:///srv/{name}"},
}


class Reader:
    """Somebody who follows the page, in a directory of their own.

    Attributes:
        settings: What stands in job.properties now.
        runs: How often job.py was started.
    """

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        places: dict[str, dict[str, str]],
    ) -> None:
        self.settings: dict[str, str] = {}
        self.runs = 0
        self._directory = directory
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._places = places
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

    def set(self, **settings: str) -> None:
        """Change lines of job.properties."""
        self.settings |= settings
        for name, place in self._places.items():
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
        # A backend that nobody lists has no settings: the page says that they may go.
        lines = [f"{key}={value}" for key, value in self.settings.items() if self._is_used(key)]
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


def make_reader(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *kinds: str,
) -> Reader:
    places = {name: PLACES[kind] for name, kind in zip(["old", "new"], kinds, strict=True)}
    reader = Reader(directory, monkeypatch, capsys, places)
    reader.follow("A job to try it with")
    return reader


@pytest.mark.parametrize(("old", "new"), [("blob", "hdfs"), ("hdfs", "blob"), ("blob", "blob")])
def test_the_page_leads_from_one_place_to_another_without_losing_a_commit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, old, new)
    reader.follow(*STEPS)
    reader.follow("A job that is stopped anyway")
    assert reader.runs == 7


def test_the_old_place_is_not_needed_after_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "hdfs")
    reader.follow(*STEPS)
    (tmp_path / "old").rename(tmp_path / "gone")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_there_is_a_way_back_from_every_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: int,
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "hdfs")
    before = dict(reader.settings)
    seen: list[dict[str, str]] = []
    for heading in STEPS[:step]:
        reader.follow(heading)
        seen.append(dict(reader.settings))
    if step == 3:
        reader.set(**seen[1])
        reader.run("python job.py")
    reader.settings.clear()
    reader.set(**before)
    (tmp_path / "new").rename(tmp_path / "gone")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


def test_there_is_a_way_back_for_the_log_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "hdfs")
    reader.follow(*STEPS)
    again = {
        "backends.again.factory": "blob",
        "backends.again.uri": "file:///srv/old-again",
        "stores.counts.backup.factories": "new,again",
    }
    reader.set(**again)
    reader.run("python job.py")
    line = '--yes --config job.properties --task "Partition 0"'
    reader.run(f"statekeep migrate-log --to again {line}")
    reader.set(**{"job.log.backend": "again"})
    reader.run("python job.py")


def test_a_start_with_the_old_settings_is_refused_once_the_log_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "hdfs")
    reader.follow("Step 1")
    before = dict(reader.settings)
    reader.follow("Step 2", "Step 3", "Step 4")
    reader.set(**before)
    with pytest.raises(ConfigError, match="the job log has moved: backend=new"):
        runpy.run_path("job.py", run_name="__main__")
    for command in ("checkpoints list", "reset --yes"):
        words = f'statekeep {command} --config job.properties --task "Partition 0"'
        monkeypatch.setattr(sys, "argv", shlex.split(words))
        with pytest.raises(SystemExit) as exit_info:
            app.main()
        assert exit_info.value.code == 2
        assert "the job log has moved" in capsys.readouterr().err
    reader.set(**{"job.log.backend": "new"})
    reader.run("python job.py")
