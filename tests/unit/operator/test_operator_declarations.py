"""What a processor declares is checked before a query starts."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from operator_kit import ByFunction
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from statekeep.errors import ConfigError, StateBackupError, StateSchemaError
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.declarations import check_declarations, check_order

KEY = parse_schema("key string")


def check(init: Callable[[StatefulProcessorHandle], Any]) -> ByFunction:
    processor = ByFunction(init)
    check_declarations(processor, KEY)
    return processor


def _well(handle: StatefulProcessorHandle) -> None:
    handle.deleteIfExists("older")
    handle.getMapState("m", "k long", "n long")


def test_a_processor_without_faults_is_initialised_and_closed_once() -> None:
    assert check(_well).calls == ["init", "close"]


def _twice(handle: StatefulProcessorHandle) -> None:
    handle.getValueState("v", "n long")
    handle.getListState("v", "n long")


@pytest.mark.parametrize(
    ("init", "kind", "words"),
    [
        (lambda h: h.getValueState("v", "n long NOT NULL"), StateSchemaError, "not null"),
        (lambda h: h.getValueState("v", "n interval year"), StateSchemaError, "schema"),
        (_twice, StateSchemaError, "declared twice"),
        (lambda h: h.getValueState("v", "n long", 1000), ConfigError, "ttlDurationMs"),
        (lambda h: h.registerTimer(1), ConfigError, "timers"),
        (lambda h: h.getValueState("v", "n long").get(), ConfigError, "no grouping key"),
    ],
    ids=["not null", "type", "twice", "time to live", "timer", "use in init"],
)
def test_what_cannot_be_kept_is_refused(
    init: Callable[[StatefulProcessorHandle], Any], kind: type[StateBackupError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        check(init)


def test_an_init_that_needs_an_executor_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def init(handle: StatefulProcessorHandle) -> None:
        raise FileNotFoundError("/only/on/executors")

    check(init)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "class=ByFunction error=FileNotFoundError('/only/on/executors')" in record.getMessage()


A, B, C = (frozenset({name}) for name in "abc")
NONE = frozenset[str]()


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ({"main": B, "operator-2": A}, {"main": A, "operator-2": B}),
        (
            {"main": C, "operator-2": A, "operator-3": B},
            {"main": A, "operator-2": B, "operator-3": C},
        ),
        ({"main": B, "operator-2": A | C}, {"main": A, "operator-2": B}),
        ({"main": B, "operator-2": A}, {"main": A | C, "operator-2": B | C}),
        ({"main": C | B, "operator-2": C | A}, {"main": A | C, "operator-2": B | C}),
        ({"main": B, "operator-2": A}, {"main": A, "operator-2": NONE}),
        ({"main": B | C, "operator-2": A | C}, {"main": A | C, "operator-2": NONE}),
    ],
    ids=[
        "two",
        "in a circle",
        "one declares more",
        "each has a former variable",
        "one name in both",
        "one without state",
        "one name in both, one without state",
    ],
)
def test_operators_that_have_the_state_of_each_other_are_refused(
    declared: Mapping[str, frozenset[str]], stored: Mapping[str, frozenset[str]]
) -> None:
    with pytest.raises(
        ConfigError, match=r"seem to be swapped: operator=main stored=a(,c)? declared="
    ) as error:
        check_order(declared, stored)
    (hint,) = error.value.hints
    assert "order that the job began with" in hint
    assert "deleteIfExists in init for each former name" in hint


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ({"main": A, "operator-2": B}, {"main": A, "operator-2": B}),
        ({"main": A, "operator-2": A}, {"main": A, "operator-2": A}),
        ({"main": C, "operator-2": A | B}, {"main": A, "operator-2": B}),
        ({"main": B, "operator-2": A}, {"main": NONE, "operator-2": NONE}),
        ({"main": B, "operator-2": A | B}, {"main": A, "operator-2": B}),
        ({"main": A | B, "operator-2": B}, {"main": A, "operator-2": NONE}),
        ({"main": B, "operator-2": B}, {"main": A, "operator-2": A}),
        ({"main": B, "operator-2": B}, {"main": A, "operator-2": NONE}),
        ({"main": A | B, "operator-2": B | C}, {"main": A, "operator-2": B}),
    ],
    ids=[
        "as before",
        "same names",
        "renamed",
        "without state",
        "moved variable",
        "added",
        "renamed in both",
        "renamed in both, one without state",
        "renamed in a chain, the former names deleted",
    ],
)
def test_operators_that_may_have_other_variables_now_are_taken(
    declared: Mapping[str, frozenset[str]], stored: Mapping[str, frozenset[str]]
) -> None:
    check_order(declared, stored)
