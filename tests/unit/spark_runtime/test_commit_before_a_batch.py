"""Which commit a batch that runs again begins with, by the job log."""

import msgspec
import pytest
from log_kit import abort_record, attempt_record, base_record, batch_record, commit_record, stamped

from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import Record, ReleaseRecord, StateChange
from statekeep.errors import ConfigError
from statekeep.spark.batch_replay.recorded import commit_before


def view_of_records(*records: Record) -> LogView:
    view = LogView()
    for position, record in enumerate(records):
        view.fold(position, stamped(record, 1))
    return view


def committed(attempt: int, batch: int) -> tuple[Record, Record]:
    return attempt_record(attempt, batch), commit_record(attempt, batch)


LOG = (
    *committed(1, -1),
    batch_record(0),
    batch_record(1),
    batch_record(2),
    *committed(2, 1),
    batch_record(3),
    batch_record(4),
    *committed(3, 3),
)


@pytest.mark.parametrize(("batch", "expected"), [(0, -1), (1, -1), (2, 1), (3, 1), (4, 3)])
def test_it_is_the_newest_one_of_a_batch_before(batch: int, expected: int) -> None:
    assert commit_before(view_of_records(*LOG), batch).batch == expected


@pytest.mark.parametrize("batch", [-1, 5, 70])
def test_a_batch_without_a_record_is_refused_with_those_that_have_one(batch: int) -> None:
    with pytest.raises(ConfigError, match=rf"batch={batch} recorded=0\.\.4"):
        commit_before(view_of_records(*LOG), batch)


def test_what_is_released_is_not_begun_with() -> None:
    view = view_of_records(*LOG, ReleaseRecord(positions=[1]))
    assert commit_before(view, 2).batch == 1
    with pytest.raises(ConfigError, match=r"batch=1 recorded=2\.\.4"):
        commit_before(view, 1)


def test_batches_before_a_change_of_state_do_not_run_on_the_changed_state() -> None:
    change = StateChange(kind="put", by="me", reason="test")
    changed = msgspec.structs.replace(commit_record(4, 3), change=change)
    view = view_of_records(*LOG, attempt_record(4, 3), changed)
    assert commit_before(view, 4).change == change
    with pytest.raises(ConfigError, match=r"batch=3 recorded=4\.\.4"):
        commit_before(view, 3)


def test_a_batch_that_a_later_driver_took_back_is_refused() -> None:
    view = view_of_records(*LOG, base_record(3, commit_position=9))
    with pytest.raises(ConfigError, match=r"batch=4 recorded=0\.\.3"):
        commit_before(view, 4)


def test_a_job_without_a_batch_says_none() -> None:
    with pytest.raises(ConfigError, match="batch=0 recorded=none"):
        commit_before(view_of_records(*committed(1, -1)), 0)
    with pytest.raises(ConfigError, match="batch=0 recorded=none"):
        commit_before(view_of_records(attempt_record(1), abort_record(1)), 0)
