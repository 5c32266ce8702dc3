"""What a developer's machine gets: pinned packages, and nothing system-wide without being asked."""

import json
import re
import sys
import tomllib
from collections import Counter
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
UNBOUNDED = {"cryptography"}
"""Every release is a major one, and may mend a weakness."""


def load(name: str) -> ModuleType:
    spec = util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The set-up on a machine without Java whose root runs it; it runs nothing."""
    module: Any = load("bootstrap")
    module.commands = []
    monkeypatch.delenv(module.CONSENT, raising=False)
    monkeypatch.setattr(module, "can_install", lambda manager: manager == "apt-get")
    monkeypatch.setattr(module, "run", lambda *command: module.commands.append(command))
    monkeypatch.setattr(module, "find_java", lambda: "/java" if module.commands else None)
    return module


def test_java_is_not_installed_unasked_and_the_remedy_is_printed(
    bootstrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    with pytest.raises(bootstrap.SetupError, match="make setup STATEKEEP_SETUP_JAVA=yes"):
        bootstrap.install_java()
    assert not bootstrap.commands


@pytest.mark.parametrize(("told", "is_installed"), [("yes", True), ("no", False), ("", False)])
def test_java_is_installed_if_the_environment_says_so(
    bootstrap: Any, monkeypatch: pytest.MonkeyPatch, told: str, *, is_installed: bool
) -> None:
    monkeypatch.setenv(bootstrap.CONSENT, told)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    if is_installed:
        assert bootstrap.install_java() == "/java"
    else:
        with pytest.raises(bootstrap.SetupError):
            bootstrap.install_java()
    assert bool(bootstrap.commands) is is_installed


@pytest.mark.parametrize(("reply", "is_installed"), [("y", True), ("Yes", True), ("", False)])
def test_a_person_is_asked(
    bootstrap: Any, monkeypatch: pytest.MonkeyPatch, reply: str, *, is_installed: bool
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: reply)
    assert bootstrap.may_install("Java") is is_installed


def test_the_ci_lets_java_be_installed() -> None:
    assert "\nexport STATEKEEP_SETUP_JAVA=yes\n" in (ROOT / ".ci" / "run").read_text()


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    for extra in project["project"]["optional-dependencies"].values():
        lines += extra
    return [Requirement(line) for line in lines]


def test_every_pin_is_a_name_and_a_version_without_hosts() -> None:
    lines = (ROOT / "requirements" / "development.txt").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert [line for line in lines[1:] if not re.fullmatch(r"[\w.-]+==[\w.+!]+", line)] == []


def test_the_pins_are_what_the_project_allows() -> None:
    lines = (ROOT / "requirements" / "development.txt").read_text().splitlines()[1:]
    pins = {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines)
    }
    for requirement in requirements():
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_every_dependency_of_users_has_bounds() -> None:
    for requirement in requirements():
        operators = {clause.operator for clause in requirement.specifier}
        is_bounded = {">=", "<"} <= operators or operators == {"=="}
        assert is_bounded or requirement.name in UNBOUNDED, requirement


@pytest.mark.parametrize(
    ("licence", "is_fine"),
    [
        ("Apache-2.0", True),
        ("MIT License", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("BSD-3-Clause AND MIT", True),
        ("BSD-3-Clause AND GPL-3.0-only", False),
        ("LGPL-2.1", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_by_its_name(licence: str, *, is_fine: bool) -> None:
    assert load("audit").is_allowed(licence) is is_fine


def test_a_database_that_knows_no_package_counts_as_none() -> None:
    answers_of = load("audit").answers_of
    unknown = {"name": "a", "skip_reason": "not found"}
    weak = {"name": "b", "version": "1", "vulns": [{"id": "X-1"}]}
    assert answers_of("") is None
    assert answers_of(json.dumps({"dependencies": [unknown]})) is None
    answers = answers_of(json.dumps({"dependencies": [unknown, weak]}))
    assert answers == (["advisory: b 1 X-1"], ["a"])


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports them by their names alone, and a run of all of them would end at the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name, count in Counter(names).items() if count > 1] == []
