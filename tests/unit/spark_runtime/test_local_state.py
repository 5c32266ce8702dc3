"""How the versions on the tasks' hosts served a batch, as progress reports show it."""

import inspect
import json
from collections.abc import Mapping

import pytest
from pyspark.sql.streaming.listener import StateOperatorProgress, StreamingQueryProgress

from statekeep.spark.driver import processing
from statekeep.spark.driver.processing import BatchResult, LocalSizes, LocalState
from statekeep.spark.driver.progress import (
    BatchStatistics,
    add_operators,
    operator_progress,
    statistics_of,
)
from statekeep.spark.driver.task_jobs import Answer
from statekeep.spark.driver.ticks import SOURCE_NAME
from statekeep.spark.worker.job_spec import Receipt

BASE = "0_000000000a"


def result_of(*receipts: Receipt, bases: Mapping[int, str] | None = None) -> BatchResult:
    by_partition = {receipt.partition: Answer(receipt, ()) for receipt in receipts}
    return processing._result(
        by_partition, bases or dict.fromkeys(by_partition, BASE), is_sorted=False
    )


def sealed(partition: int, size: int) -> Receipt:
    return Receipt(
        partition, "1_0", state_bytes=size, local_versions=2, local_bytes=size + size // 2
    )


def test_a_base_that_is_here_is_a_hit_and_one_that_is_not_a_miss() -> None:
    result = result_of(sealed(0, 10), Receipt(1, BASE), Receipt(2, BASE, is_missing=True))
    assert (result.local.hits, result.local.misses) == (2, 1)


def test_empty_state_is_neither() -> None:
    assert result_of(sealed(0, 10), bases={0: ""}).local.hits == 0


def test_rows_that_are_to_be_sorted_first_are_counted_once() -> None:
    result = result_of(Receipt(0, BASE, is_overflow=True))
    result.merge(result_of(sealed(0, 10)))
    assert result.local.hits == 1


def test_the_changes_of_all_tasks_and_operators_are_added_up() -> None:
    result = result_of(Receipt(0, "1_0", changed_bytes=10), Receipt(1, "1_1", changed_bytes=5))
    result.merge(result_of(Receipt(2, "1_2", changed_bytes=100)))
    assert result.changed_bytes == 115


def test_a_task_without_changes_keeps_its_sizes() -> None:
    before = LocalState(sizes={0: LocalSizes(10, 2, 15), 1: LocalSizes(20, 2, 30)})
    local = before + result_of(Receipt(0, BASE), sealed(1, 40)).local
    assert local.sizes == {0: LocalSizes(10, 2, 15), 1: LocalSizes(40, 2, 60)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("localVersionHitCount", 1),
        ("localVersionMissCount", 1),
        ("localVersionCount", 4),
        ("localVersionsSizeBytes", 45),
        ("stateOnCurrentVersionSizeBytes", 30),
    ],
)
def test_progress_has_the_sum_over_the_tasks(name: str, value: int) -> None:
    local = LocalState(1, 1, {0: LocalSizes(10, 2, 15), 1: LocalSizes(20, 2, 30)})
    progress = operator_progress(statistics_of(0, BatchResult(), local), 2, None, {}, {})
    assert progress.customMetrics[name] == value


def test_progress_has_every_field_of_sparks_entry_and_what_is_declared() -> None:
    declared = {"numValueStateVars": 2, "numDeletedStateVars": 1}
    done = BatchStatistics(changed_keys=7)
    progress = operator_progress(done, 4, None, declared, {"restarts": 3})
    of_spark = StateOperatorProgress.fromJson(
        dict.fromkeys(_fields_of_spark(), 0) | {"customMetrics": {}}
    )
    assert [name for name in of_spark if getattr(progress, name) is None] == []
    assert (progress.numRowsUpdated, progress.numStateStoreInstances) == (7, 4)
    assert declared.items() <= progress.customMetrics.items()
    assert progress["restarts"] == 3
    assert json.loads(progress.json) == progress


def test_the_text_of_a_progress_has_the_entries_of_our_operators_and_not_our_source() -> None:
    offsets = dict.fromkeys(["startOffset", "endOffset", "latestOffset"], "1")
    source = {**offsets, "numInputRows": 3, "metrics": {}}
    rates = dict.fromkeys(["inputRowsPerSecond", "processedRowsPerSecond"], 1.0)
    sources = [{**source, **rates, "description": name} for name in ("rate", SOURCE_NAME)]
    progress = StreamingQueryProgress.fromJson(
        {
            **dict.fromkeys(["id", "runId"], "00000000-0000-0000-0000-000000000001"),
            "name": None,
            "timestamp": "t",
            "batchId": 7,
            "batchDuration": 1,
            "sources": sources,
            "stateOperators": [],
            "sink": {"description": "s", "numOutputRows": 1, "metrics": {}},
        }
    )
    entry = operator_progress(BatchStatistics(changed_keys=7), 4, None, {}, {})
    add_operators(progress, [entry])
    assert progress["stateOperators"] == [entry]
    for shown in (json.loads(progress.json), json.loads(repr(progress)), progress):
        assert [operator["numRowsUpdated"] for operator in shown["stateOperators"]] == [7]
        assert [given["description"] for given in shown["sources"]] == ["rate"]


def _fields_of_spark() -> list[str]:
    signature = inspect.signature(StateOperatorProgress.__init__)
    return [name for name in signature.parameters if name not in {"self", "jprogress", "jdict"}]
