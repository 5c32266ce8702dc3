"""What a processor declares is checked before a query starts."""

from collections.abc import Callable
from typing import Any

import pytest
from operator_kit import ByFunction
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from statekeep.errors import ConfigError, StateBackupError, StateSchemaError
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.declarations import check_declarations

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
