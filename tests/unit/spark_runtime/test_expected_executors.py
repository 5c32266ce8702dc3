"""How many executors a start waits for: what is sure to come, and no more."""

from types import SimpleNamespace
from typing import Any

import pytest

from statekeep.spark.placement import expected_executors

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}
LEAST = "spark.dynamicAllocation.minExecutors"
FIRST = "spark.dynamicAllocation.initialExecutors"


def session(master: str, settings: dict[str, str]) -> Any:
    """Return the little of a session that tells what was asked for."""
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, _conf=settings))


@pytest.mark.parametrize(
    ("master", "settings", "expected"),
    [
        ("local[4]", {}, 0),
        ("local[4]", {**DYNAMIC, LEAST: "2"}, 0),
        ("local-cluster[3,1,1024]", {}, 3),
        ("local-cluster[3,1,1024]", {**DYNAMIC, LEAST: "1"}, 1),
        ("yarn", {}, 1),
        ("yarn", {"spark.executor.instances": "5"}, 5),
        ("yarn", {**DYNAMIC, LEAST: "2", FIRST: "4", "spark.executor.instances": "6"}, 2),
        ("k8s://host", {**DYNAMIC, FIRST: "4"}, 0),
    ],
)
def test_a_start_waits_for_the_executors_that_are_sure_to_come(
    master: str, settings: dict[str, str], expected: int
) -> None:
    assert expected_executors(session(master, settings)) == expected


@pytest.mark.parametrize(("least", "warnings"), [("0", 1), ("1", 0)])
def test_dynamic_allocation_without_a_least_number_is_warned_of(
    least: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected_executors(session("yarn", {**DYNAMIC, LEAST: least}))
    assert len(caplog.records) == warnings
    assert all("spark.dynamicAllocation.minExecutors" in r.getMessage() for r in caplog.records)
