import msgspec
import pytest
from log_kit import (
    abort_record,
    attempt_record,
    base_record,
    batch_record,
    commit_record,
    stamped,
)

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
)
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    BadMarkerRecord,
    EpochRecord,
    KeptRecord,
    PinRecord,
    QueryState,
    Record,
    ReleaseRecord,
    StateChange,
    UnpinRecord,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.errors import CheckpointCorruptError


def epoch_record(epoch: int) -> EpochRecord:
    return EpochRecord(epoch=epoch, nonce="", owner="driver")


def release(*positions: int) -> ReleaseRecord:
    return ReleaseRecord(positions=list(positions))


def pin(name: str, position: int) -> PinRecord:
    return PinRecord(name=name, position=position)


def folded(*records: Record) -> LogView:
    """Fold records; each without an epoch of its own gets that of the last epoch record."""
    view = LogView()
    for position, record in enumerate(records):
        is_epoch = isinstance(record, EpochRecord)
        view.fold(position, record if is_epoch else stamped(record, view.epoch))
    return view


def test_empty_log_has_no_commit() -> None:
    view = LogView()

    assert view.last_commit is None
    assert view.last_commit_position == -1
    assert view.lowest_needed == 0


def test_last_commit_is_the_one_at_the_highest_position() -> None:
    view = folded(epoch_record(1), commit_record(1, 5), commit_record(2, 3))

    assert view.last_commit_position == 2
    assert view.last_commit is not None
    assert view.last_commit.batch == 3


def test_attempt_is_open_until_it_is_committed_or_aborted() -> None:
    began: list[Record] = [epoch_record(1), attempt_record(1), attempt_record(2), attempt_record(3)]

    view = folded(*began, commit_record(1), abort_record(2))

    assert list(view.open_attempts) == [(1, 3)]
    assert view.aborted_attempts == {(1, 2)}


def test_base_record_aborts_open_attempts_of_older_epochs() -> None:
    view = folded(epoch_record(1), attempt_record(1), epoch_record(2), base_record(-1))

    assert view.open_attempts == {}
    assert view.aborted_attempts == {(1, 1)}


def test_base_record_drops_batches_above_the_head() -> None:
    batches = [batch_record(b) for b in (5, 6, 7)]

    view = folded(epoch_record(1), *batches, epoch_record(2), base_record(6))

    assert sorted(view.batches) == [5, 6]
    assert view.batch_positions == {5: 1, 6: 2}


def test_later_record_of_a_batch_supersedes_the_earlier() -> None:
    view = folded(epoch_record(1), batch_record(5), batch_record(5, uid="fedcba9876543210"))

    assert view.batches[5].tasks["Partition 0"].version == "5_fedcba9876543210"
    assert view.batch_positions == {5: 2}


@pytest.mark.parametrize(
    "switch",
    [base_record(5, query_id="r"), batch_record(1, query_id="r"), commit_record(1, query_id="r")],
    ids=["base", "batch", "commit"],
)
def test_batches_of_another_query_do_not_count(switch: Record) -> None:
    view = folded(epoch_record(1), batch_record(5), switch)

    assert 5 not in view.batches
    assert view.query_id == "r"


def test_released_commit_waits_for_its_clean_up() -> None:
    view = folded(epoch_record(1), commit_record(1), commit_record(2), release(1))

    assert list(view.commits) == [2]
    assert list(view.released) == [1]


def test_current_and_pinned_commits_are_never_released() -> None:
    commits = [commit_record(attempt) for attempt in (1, 2, 3)]

    view = folded(epoch_record(1), *commits, pin("keep", 1), release(1, 2, 3))

    assert list(view.commits) == [1, 3]


def test_released_commits_are_forgotten_once_their_clean_up_is_done() -> None:
    view = folded(epoch_record(1), *(commit_record(n) for n in (1, 2, 3)), release(1, 2))

    view.forget_collected([(1, 1), (1, 9)])

    assert list(view.released) == [2]
    assert list(view.commits) == [3]


def test_unpinned_commit_can_be_released() -> None:
    unpin = UnpinRecord(name="keep")

    view = folded(
        epoch_record(1), commit_record(1), commit_record(2), pin("keep", 1), unpin, release(1)
    )

    assert view.pins == {}
    assert list(view.commits) == [2]


def test_the_newest_record_of_a_pin_says_whether_it_expires() -> None:
    begun: list[Record] = [epoch_record(1), commit_record(1)]
    expiring = [PinRecord(name="read", position=1, expires_ms=millis) for millis in (10, 20)]

    assert folded(*begun, *expiring).pin_expiries == {"read": 20}
    assert folded(*begun, *expiring, pin("read", 1)).pin_expiries == {}
    unpinned = folded(*begun, *expiring, UnpinRecord(name="read"))
    assert (unpinned.pins, unpinned.pin_expiries) == ({}, {})


def test_pin_of_what_is_no_commit_has_no_effect() -> None:
    assert folded(epoch_record(1), pin("keep", 0)).pins == {}


def test_release_drops_batches_that_no_recovery_runs_again() -> None:
    view = folded(
        epoch_record(1),
        *(batch_record(b) for b in (1, 2, 3)),
        commit_record(1, 1),
        commit_record(2, 2),
        release(4),
    )

    assert sorted(view.batches) == [2, 3]


def test_aborted_attempt_never_completes() -> None:
    view = folded(epoch_record(1), attempt_record(1), abort_record(1), commit_record(1))

    assert view.commits == {}
    assert view.aborted_attempts == {(1, 1)}


def test_committed_attempt_is_never_aborted() -> None:
    view = folded(epoch_record(1), attempt_record(1), commit_record(1), abort_record(1))

    assert list(view.commits) == [2]
    assert view.aborted_attempts == set()


def test_attempt_rolled_forward_by_a_new_driver_is_committed() -> None:
    view = folded(
        epoch_record(1),
        attempt_record(1),
        epoch_record(2),
        commit_record(1, attempt_epoch=1),
        base_record(0),
    )

    assert view.is_committed(1, 1)
    assert view.aborted_attempts == set()


@pytest.mark.parametrize(
    "late",
    [stamped(commit_record(1), 1), epoch_record(2), epoch_record(1)],
    ids=["commit of an older epoch", "same epoch again", "older epoch"],
)
def test_record_of_a_fenced_writer_is_corruption(late: Record) -> None:
    view = folded(epoch_record(1), epoch_record(2))

    with pytest.raises(CheckpointCorruptError, match="position=2"):
        view.fold(2, late)


@pytest.mark.parametrize("position", [0, 2], ids=["again", "ahead"])
def test_records_are_folded_without_gaps(position: int) -> None:
    view = folded(epoch_record(1))

    with pytest.raises(ValueError, match="next_position=1"):
        view.fold(position, stamped(commit_record(1), 1))


def test_log_is_needed_from_the_oldest_commit_its_batches_and_open_attempts_on() -> None:
    records: list[Record] = [
        epoch_record(1),
        batch_record(1),  # committed
        batch_record(2),  # recorded while the commit of batch 1 was under way
        commit_record(1, 1),
        attempt_record(2, 2),
    ]

    assert folded(*records).lowest_needed == 2
    assert folded(*records, commit_record(2, 2), release(3)).lowest_needed == 5
    assert folded(*records, commit_record(3, 2), release(3)).lowest_needed == 4


def test_epoch_of_a_trimmed_log_is_that_of_its_records() -> None:
    view = LogView(next_position=9)
    view.fold(9, stamped(commit_record(1), 4))

    assert view.epoch == 4


def test_bad_marker_is_remembered() -> None:
    bad = BadMarkerRecord(backend="blob", task="Partition 3", store="s", marker="m", reason="crc")

    assert folded(epoch_record(1), bad).bad_markers == {("blob", "Partition 3", "s", "m")}


def test_checkpoint_of_a_commit_is_without_bad_markers() -> None:
    checkpoint = CheckpointV2(
        CheckpointId(7, 1),
        {},
        {
            BackendName("blob"): {StoreName("s"): Marker("m"), StoreName("t"): Marker("m")},
            BackendName("kafka"): {StoreName("s"): Marker("m")},
        },
    )
    commit = msgspec.structs.replace(
        commit_record(1), checkpoints={"Partition 3": msgspec.Raw(encode_checkpoint_v2(checkpoint))}
    )
    bad = BadMarkerRecord(backend="blob", task="Partition 3", store="s", marker="m", reason="crc")
    view = folded(epoch_record(1), commit, bad)

    usable = view.usable_checkpoint(commit, "Partition 3")

    assert usable is not None
    assert usable.state_markers == {"blob": {"t": "m"}, "kafka": {"s": "m"}}
    assert view.usable_checkpoint(commit, "Partition 4") is None


def test_batches_recorded_before_a_damaged_record_name_no_versions() -> None:
    view = folded(epoch_record(1), commit_record(1), batch_record(1), batch_record(2))
    view.fold_unreadable_batch(4)
    view.fold(5, stamped(batch_record(2, uid="fedcba9876543210"), 1))

    assert set(view.batches) == {1, 2}
    assert set(view.trusted_batches) == {2}


def test_a_damaged_record_may_be_of_one_more_batch() -> None:
    view = folded(epoch_record(1), commit_record(1), batch_record(1))
    assert view.newest_possible_batch == 1

    view.fold_unreadable_batch(3)

    assert view.newest_possible_batch == 2


def test_a_batch_above_the_head_of_a_base_may_have_been_delivered() -> None:
    begun: list[Record] = [
        epoch_record(1),
        commit_record(1),
        batch_record(1),
        batch_record(2),
        epoch_record(2),
    ]

    view = folded(*begun, base_record(1))
    again = folded(*begun, base_record(1), batch_record(2))

    assert set(view.batches) == {1}
    assert view.overtaken_batches.keys() == {2}
    assert view.newest_possible_batch == 2
    assert again.overtaken_batches == {}


def test_nothing_before_a_reset_counts_any_more() -> None:
    bad = BadMarkerRecord(backend="blob", task="Partition 0", store="s", marker="m", reason="crc")
    before: list[Record] = [
        epoch_record(1),
        commit_record(1, 0),
        pin("keep", 1),
        attempt_record(2, 1),
        abort_record(2),
        attempt_record(3, 1),
        batch_record(1),
        bad,
        commit_record(3, 1),
        release(8),
        attempt_record(4, 2),
    ]
    reset = EpochRecord(epoch=2, nonce="", owner="reset", is_reset=True)

    assert folded(*before, reset) == LogView(next_position=len(before) + 1, epoch=2)


def committed_batches(*numbers: int) -> list[Record]:
    """Return the records of batches that are committed each: one after the other."""
    query = QueryState(query_id="q", metadata="{}", offsets="o")
    commits = [msgspec.structs.replace(commit_record(n, n), query=query) for n in numbers]
    return [
        record
        for n, commit in zip(numbers, commits, strict=True)
        for record in (batch_record(n), commit)
    ]


def test_batches_since_a_pinned_commit_leave_memory_and_the_log_keeps_them() -> None:
    begun: list[Record] = [epoch_record(1), *committed_batches(1, 2, 3, 4, 5)]

    view = folded(*begun, pin("keep", 2), release(4, 6))

    assert list(view.commits) == [2, 8, 10]
    assert set(view.batches) == {4, 5}
    assert [commit.batch for commit in view.comparable_commits] == [4, 5]
    assert view.lowest_needed == 2


def test_batches_since_a_commit_that_only_its_age_keeps_leave_memory() -> None:
    view = folded(epoch_record(1), *committed_batches(*range(1, 101)))

    assert len(view.commits) == 100
    assert [commit.batch for commit in view.commit_records.values()] == list(range(85, 101))
    assert [commit.batch for commit in view.comparable_commits] == list(range(85, 101))
    assert set(view.batches) == set(range(85, 101))
    assert view.lowest_needed == 2


def test_orphans_are_collected_once_and_aborted_attempts_forgotten_with_the_log() -> None:
    view = folded(epoch_record(1), commit_record(1), attempt_record(2), abort_record(2))

    assert view.orphans == {(1, 2)}
    view.forget_collected([(1, 2)])
    assert not view.orphans
    assert view.aborted_attempts == {(1, 2)}
    view.forget_below(4)
    assert view.aborted_attempts == set()


def test_a_released_commit_does_not_come_back_by_being_written_again() -> None:
    first = commit_record(1, 1)
    again = KeptRecord(position=1, commit=first, pins={"p": 0})
    view = folded(epoch_record(1), first, commit_record(2, 2), release(1), again)

    assert list(view.commits) == [2]
    assert view.pins == {}
    assert view.kept_at == {}


def test_a_kept_commit_is_not_current_where_a_trimmed_log_begins() -> None:
    """Batches before the oldest commit are needed: what is released between them and it has gone."""
    view = LogView(next_position=100)
    kept = KeptRecord(position=5, commit=commit_record(1, 1), pins={"p": 0})
    records: list[Record] = [kept, UnpinRecord(name="p"), release(5)]
    for position, record in enumerate(records, 100):
        view.fold(position, stamped(record, 1))
    assert view.last_commit is None
    assert list(view.commits) == []
    assert list(view.released) == [5]


def test_no_replay_goes_back_past_a_change_of_the_state() -> None:
    change = StateChange(kind="put", by="ann@host", reason="test")
    changed = msgspec.structs.replace(commit_record(2, 5), change=change)
    records: list[Record] = [epoch_record(1), batch_record(4), commit_record(1, 4), batch_record(5)]
    view = folded(*records, commit_record(3, 5), changed)

    assert [commit.attempt for commit in view.comparable_commits] == [2]
    assert view.batches == {}  # their versions lack the change
    assert view.newest_possible_batch == 5

    later = folded(*records, commit_record(3, 5), changed, batch_record(6), commit_record(4, 6))
    assert [commit.attempt for commit in later.comparable_commits] == [2, 4]
    assert set(later.batches) == {6}
