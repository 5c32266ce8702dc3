"""The runner of Spark's own tests: what passes, what is listed, what fails, and what the table says in vain."""

import importlib.util
import io
import sys
import unittest
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    path = ROOT / "scripts" / "spark_suite.py"
    spec = importlib.util.spec_from_file_location("spark_suite", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def some_tests() -> type[unittest.TestCase]:
    """In a function, as pytest would run them otherwise."""

    class SomeTests(unittest.TestCase):
        def test_good(self) -> None:
            pass

        def test_bad(self) -> None:
            self.fail("it differs")

        def test_broken(self) -> None:
            raise KeyError("no such")

        @unittest.skip("Spark says so")
        def test_left_out(self) -> None:
            pass

    return SomeTests


NAMES = [f"SomeTests.test_{name}" for name in ("bad", "broken", "good", "left_out")]


@pytest.mark.parametrize(
    ("table", "failed", "stale"),
    [
        ({}, NAMES[:2], []),
        ({"*.test_bad": "", "SomeTests.test_br*": ""}, [], []),
        ({"*.test_b*": "", "*.test_good": ""}, [], ["*.test_good"]),
        ({"*.test_b*": "", "*.test_gone": ""}, [], ["*.test_gone"]),
        ({"*.test_b*": "", "OtherTests.test_good": ""}, [], []),
        ({"*.test_b*": "", "*.test_left_out": ""}, [], []),
    ],
)
def test_what_fails_is_listed_and_what_is_listed_fails(
    suite: ModuleType, table: dict[str, str], failed: list[str], stale: list[str]
) -> None:
    out = io.StringIO()
    outcomes = suite.Outcomes(table, out)
    suite.run(unittest.defaultTestLoader.loadTestsFromTestCase(some_tests()), outcomes)
    found = outcomes.found
    assert found.failed == failed
    assert sorted([*found.failed, *found.listed]) == NAMES[:2]
    assert (found.passed, found.left_out) == (NAMES[2:3], NAMES[3:])
    assert suite.stale_rows(table, found, [*NAMES, "OtherTests.test_good"]) == stale
    assert ("it differs" in out.getvalue()) == (NAMES[0] in [*failed, *found.listed])


def test_the_table_has_a_reason_for_every_test_that_does_not_pass(suite: ModuleType) -> None:
    table = suite.read_table(suite.TABLE.read_text())
    assert table
    assert all(table.values())
    assert all(".test_" in pattern for pattern in table), "rows of another table of the page"
