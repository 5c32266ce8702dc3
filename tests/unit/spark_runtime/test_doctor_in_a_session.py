"""What the doctor says of a session, by its settings and by what executors have found."""

import re
from pathlib import Path

import pytest

from statekeep.inspection.doctor import Check
from statekeep.spark import doctor as module
from statekeep.spark.doctor import (
    Diagnosis,
    cause_of,
    check_conf,
    check_release,
    check_tasks,
    compare_executors,
    look_around,
)
from statekeep.spark.session import REQUIRED_SETTINGS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "versions.md"
SOUND = {setting.key: setting.value for setting in REQUIRED_SETTINGS}
SOCKETS = "spark.python.unix.domain.socket.enabled"


def conf(
    given: dict[str, str], *, is_local: bool = True, has_sockets: bool = True
) -> dict[str, Check]:
    found = check_conf(given, is_local=is_local, has_sockets=has_sockets)
    return {check.what: check for check in found}


@pytest.fixture(autouse=True)
def closed_umask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_umask_closed", lambda: True)


def test_a_session_of_the_builder_is_sound() -> None:
    found = conf({**SOUND, SOCKETS: "true"})
    assert {check.status for check in found.values()} == {"ok"}
    assert set(found) == {*SOUND, SOCKETS}


@pytest.mark.parametrize("key", [s.key for s in REQUIRED_SETTINGS if s.default != s.value])
def test_a_setting_that_is_missing_fails_and_says_what_to_set(key: str) -> None:
    check = conf({k: v for k, v in SOUND.items() if k != key})[key]
    assert (check.status, check.is_setting) == ("fail", True)
    assert SOUND[key] in check.remedy


def test_sockets_matter_where_driver_and_executor_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conf(SOUND)[SOCKETS].status == "warn"
    assert conf(SOUND, is_local=False)[SOCKETS].status == "ok"
    assert SOCKETS not in conf(SOUND, has_sockets=False)
    monkeypatch.setattr(module, "is_umask_closed", lambda: False)
    check = conf({**SOUND, SOCKETS: "true"})[SOCKETS]
    assert (check.status, "other users" in check.found) == ("warn", True)


def test_dynamic_allocation_without_a_least_number_is_warned_of() -> None:
    least = "spark.dynamicAllocation.minExecutors"
    dynamic = {**SOUND, "spark.dynamicAllocation.enabled": "true"}
    assert conf(dynamic)[least].status == "warn"
    assert least not in conf({**dynamic, least: "2"})


def test_releases_are_those_of_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    row = re.search(r"^\| PySpark \| (\d\.\d) to (\d\.\d)", page, re.MULTILINE)
    assert row is not None
    bounds = tuple(tuple(map(int, text.split("."))) for text in row.groups())
    assert bounds == module._TESTED
    assert check_release(bounds[1], f"{row[2]}.0").status == "ok"
    assert check_release((bounds[1][0], bounds[1][1] + 1), "later").status == "warn"
    assert check_release((3, 5), "3.5.1").status == "fail"


def test_the_number_of_tasks_is_looked_at_before_it_is_fixed() -> None:
    assert check_tasks(32, 8, is_given=False).status == "ok"
    few = check_tasks(4, 16, is_given=True)
    assert (few.status, "16" in few.remedy) == ("warn", True)
    assert check_tasks(200, 8, is_given=False).status == "warn"
    assert check_tasks(200, 8, is_given=True).status == "ok"


def test_each_executor_has_its_versions_and_disk(tmp_path: Path) -> None:
    host, versions, checks = look_around(str(tmp_path))
    assert [check.what for check in checks] == ["local directory", "local disk"]
    assert str(tmp_path) in checks[0].found
    alike = list(compare_executors({host: (versions, checks)}))
    assert alike[0].status == "ok"
    assert alike[1].what == f"local directory on {host}"
    other = next(iter(compare_executors({host: (versions, ()), "far": ("statekeep 0", ())})))
    assert (other.status, "far: statekeep 0" in other.found) == ("fail", True)


def test_an_executor_without_the_package_says_so_in_one_line() -> None:
    error = RuntimeError(
        "An error occurred while calling o1\n  File x\nModuleNotFoundError: No module named 'statekeep'\n\tat org.a"
    )
    assert cause_of(error) == "ModuleNotFoundError: No module named 'statekeep'"
    assert cause_of(RuntimeError("all is lost")) == "all is lost"


def test_it_prints_a_line_for_each_check_with_what_to_do_below() -> None:
    found = Diagnosis((Check("a", "ok", "fine"), Check("b", "fail", "bad", "mend it")))
    assert str(found).splitlines() == ["ok    a: fine", "fail  b: bad", "      -> mend it"]
    assert not found.is_sound
