import json
from typing import get_args

import msgspec
import pytest
from golden_kit import GOLDEN
from log_kit import (
    abort_record,
    attempt_record,
    base_record,
    batch_record,
    commit_record,
    stamped,
)

from statekeep.checkpoint.framing import frame, unframe
from statekeep.checkpoint.records import (
    RESHAPE,
    BadMarkerRecord,
    CommitRecord,
    EpochRecord,
    KeptRecord,
    PinRecord,
    Record,
    ReleaseRecord,
    Share,
    StateChange,
    UnpinRecord,
    decode_record,
    encode_record,
    is_damaged_batch,
)
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

CHANGED = msgspec.structs.replace(
    stamped(commit_record(2), 3), change=StateChange(kind="put", by="ann@host", reason="r")
)
RESHAPED = msgspec.structs.replace(
    CHANGED, change=StateChange(kind=RESHAPE, by="ann@host", reason="task.count is 7, it was 4")
)
RECORDS: list[Record] = [
    EpochRecord(epoch=3, nonce="n", owner="host:1"),
    stamped(base_record(-1), 3),
    stamped(batch_record(7), 3),
    stamped(attempt_record(2), 3),
    stamped(commit_record(2), 3),
    stamped(abort_record(2), 3),
    ReleaseRecord(epoch=3, nonce="n", positions=[4, 5]),
    PinRecord(epoch=3, nonce="n", name="before the change", position=9),
    UnpinRecord(epoch=3, nonce="n", name="before the change"),
    BadMarkerRecord(
        epoch=3, nonce="n", backend="blob", task="Partition 3", store="s", marker="m", reason="crc"
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record_comes_back(record: Record) -> None:
    data = encode_record(record)

    assert decode_record(data, where="here") == record
    assert encode_record(decode_record(data, where="here")) == data


def test_pin_says_when_it_expires_only_where_it_does() -> None:
    expiring = PinRecord(epoch=3, nonce="n", name="read-5f0c", position=9, expires_ms=17)

    assert b'"expires-ms":17' in encode_record(expiring)
    assert decode_record(encode_record(expiring), where="here") == expiring
    assert b"expires" not in encode_record(PinRecord(epoch=3, nonce="n", name="p", position=9))


def test_epoch_record_says_that_it_is_a_reset_only_where_it_is_one() -> None:
    reset = EpochRecord(epoch=4, nonce="n", owner="host:1", is_reset=True)

    assert b'"is-reset":true' in encode_record(reset)
    assert decode_record(encode_record(reset), where="here") == reset
    assert b"is-reset" not in encode_record(EpochRecord(epoch=4, nonce="n", owner="host:1"))


def test_unknown_fields_are_ignored() -> None:
    payload = b'{"type":"epoch","epoch":3,"nonce":"n","owner":"host","added-later":{"a":[1]}}'

    record = decode_record(frame("epoch", payload), where="here")

    assert record == EpochRecord(epoch=3, nonce="n", owner="host")


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"decree","epoch":3,"nonce":"n"}',
        b'{"type":"epoch","epoch":"3","nonce":"n","owner":"host"}',
        b'{"type":"epoch","epoch":3,"nonce":"n"}',
        b'{"type":"epoch","nonce":"n","owner":"host"}',
        b'{"type":"epoch","epoch":3,"owner":"host"}',
        b"[]",
        b"\xff",
    ],
    ids=[
        "unknown type",
        "wrong type",
        "missing field",
        "no epoch",
        "no nonce",
        "no object",
        "no text",
    ],
)
def test_record_of_another_form_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CheckpointCorruptError, match="here"):
        decode_record(frame("epoch", payload), where="here")


def test_a_record_of_a_type_to_come_is_no_damage() -> None:
    payload = b'{"type":"decree","epoch":3,"nonce":"n"}'

    with pytest.raises(UnknownFormatError, match="here type=decree"):
        decode_record(frame("decree", payload), where="here")


def test_checkpoint_stands_in_a_commit_record_as_it_was_written() -> None:
    payload = encode_record(commit_record(1)).partition(b"\n")[2]

    assert json.loads(payload)["checkpoints"] == {"Partition 0": {"version": 2}}


def test_a_release_without_changes_of_the_state_refuses_a_commit_with_one() -> None:
    assert decode_record(encode_record(CHANGED), where="here") == CHANGED
    # It knows the kinds of frames that are the tags of its records, "commit" among them.
    tags = {str(kind.__struct_config__.tag) for kind in get_args(Record)}
    assert unframe(encode_record(CHANGED), where="here").kind not in tags
    assert unframe(encode_record(stamped(commit_record(2), 3)), where="here").kind == "commit"


def test_a_golden_commit_with_a_change_is_read_and_written() -> None:
    golden = (GOLDEN / "changed-commit.record").read_bytes()
    assert decode_record(golden, where="here") == CHANGED
    assert encode_record(CHANGED) == golden


def test_a_release_without_other_numbers_of_tasks_refuses_a_commit_with_one() -> None:
    assert decode_record(encode_record(RESHAPED), where="here") == RESHAPED
    kinds = {unframe(encode_record(r), where="here").kind for r in (CHANGED, RESHAPED)}
    assert kinds == {"changed-commit", "reshaped-commit"}


def test_a_golden_commit_with_another_number_of_tasks_is_read_and_written() -> None:
    golden = (GOLDEN / "reshaped-commit.record").read_bytes()
    assert decode_record(golden, where="here") == RESHAPED
    assert encode_record(RESHAPED) == golden


SHARE = Share(
    job_name="flights",
    job_uid="77aa",
    log="blob",
    position=41,
    pin="clone:flights-new:5f0c3a9b",
)
CLONE_PIN = PinRecord(epoch=3, nonce="9d2c41", name=SHARE.pin, position=41, clone="flights-new")


def test_a_release_without_clones_refuses_what_they_write_and_what_is_kept_for_them() -> None:
    change = StateChange(kind="put", by="ann@host", reason="r")
    commit = msgspec.structs.replace(commit_record(1), epoch=3, nonce="n")
    identity = msgspec.structs.replace(commit.identity, shares=[SHARE])
    shared = msgspec.structs.replace(commit, identity=identity)
    attempt = msgspec.structs.replace(attempt_record(1), epoch=3, nonce="n")
    kept = KeptRecord(epoch=3, nonce="n", position=1, commit=commit, pins={SHARE.pin: 0})
    records: list[Record] = [
        CLONE_PIN,
        shared,
        msgspec.structs.replace(shared, change=change),
        msgspec.structs.replace(attempt, identity=identity),
        msgspec.structs.replace(kept, clones={SHARE.pin: "copy"}),
        msgspec.structs.replace(kept, commit=shared),
    ]
    older = {str(kind.__struct_config__.tag) for kind in get_args(Record)}
    older |= {"changed-commit", "reshaped-commit"}
    for record in records:
        data = encode_record(record)
        assert decode_record(data, where="here") == record
        assert unframe(data, where="here").kind not in older
    assert {unframe(encode_record(r), where="").kind for r in (commit, attempt, kept)} == {
        *("commit", "attempt", "kept")
    }


def test_golden_records_of_a_clone_are_read_and_written() -> None:
    golden = (GOLDEN / "clone-pin.record").read_bytes()
    assert decode_record(golden, where="here") == CLONE_PIN
    assert encode_record(CLONE_PIN) == golden
    golden = (GOLDEN / "shared-commit.record").read_bytes()
    commit = decode_record(golden, where="here")
    assert isinstance(commit, CommitRecord)
    assert commit.identity.shares == [SHARE]
    assert encode_record(commit) == golden


def test_only_a_damaged_batch_record_is_one() -> None:
    assert is_damaged_batch(encode_record(batch_record(7))[:-1])
    assert not is_damaged_batch(encode_record(commit_record(1))[:-1])
    assert not is_damaged_batch(b"")
