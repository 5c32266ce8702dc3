import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
    VersionId,
)
from statekeep.checkpoint.framing import frame
from statekeep.checkpoint.serde import (
    AttemptEntry,
    BackendUpload,
    FailedTask,
    FinishedTask,
    decode_attempt_entry,
    decode_checkpoint_v2,
    encode_attempt_entry,
    encode_checkpoint_v2,
)
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

GOLDEN = Path(__file__).parents[2] / "golden"
GOLDEN_V2 = (GOLDEN / "checkpoint-v2.json").read_bytes().rstrip()
KAFKA = "org.apache.samza.storage.KafkaChangelogStateBackendFactory"
BLOB = "org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory"
SESSIONS = StoreName("sessions")
PAGE_VIEWS = SystemStreamPartition("kafka", "page-views", 0)

any_text = st.text(st.characters(exclude_categories=["Cs"]))
partitions = st.integers(min_value=0, max_value=2**31 - 1)
undotted_ssps = st.builds(
    SystemStreamPartition, any_text.filter(lambda text: "." not in text), any_text, partitions
)
checkpoints_v2 = st.builds(
    CheckpointV2,
    st.builds(
        CheckpointId,
        st.integers(min_value=0, max_value=10**15),
        st.integers(min_value=0, max_value=999_999),
    ),
    st.dictionaries(undotted_ssps, any_text),
    st.dictionaries(
        any_text.map(BackendName),
        st.dictionaries(any_text.map(StoreName), any_text.map(Marker)),
    ),
)


def minimal_v2(**changed: object) -> bytes:
    fields: dict[str, object] = {
        "checkpoint-id": "1-2",
        "input-offsets": {},
        "state-checkpoint-markers": {},
        "version": 2,
    }
    return json.dumps(fields | {key.replace("_", "-"): v for key, v in changed.items()}).encode()


def test_samzas_checkpoint_v2_is_read() -> None:
    checkpoint = decode_checkpoint_v2(GOLDEN_V2, "golden")

    assert checkpoint.checkpoint_id == CheckpointId(1700000000123, 456789)
    assert checkpoint.input_offsets == {
        PAGE_VIEWS: "1234",
        SystemStreamPartition("kafka", "eu-page-views", 7): "99",
    }
    markers = checkpoint.markers_of(BackendName(KAFKA))
    assert json.loads(markers[SESSIONS])["changelog-offset"] == "5678"
    assert json.loads(markers[StoreName("totals")])["changelog-offset"] is None
    assert checkpoint.markers_of(BackendName(BLOB)) == {SESSIONS: "blob-id-of-the-snapshot-index"}


def test_checkpoint_v2_is_written_as_samza_writes_it() -> None:
    assert encode_checkpoint_v2(decode_checkpoint_v2(GOLDEN_V2, "golden")) == GOLDEN_V2


@settings(deadline=None)
@given(checkpoints_v2)
def test_every_checkpoint_v2_comes_back(checkpoint: CheckpointV2) -> None:
    assert decode_checkpoint_v2(encode_checkpoint_v2(checkpoint), "here") == checkpoint


def test_stream_name_with_dots_comes_back() -> None:
    ssp = SystemStreamPartition("kafka", "eu.page.views.3", 12)
    checkpoint = CheckpointV2(CheckpointId(1, 2), {ssp: "5"})

    data = encode_checkpoint_v2(checkpoint)

    assert b'"kafka.eu.page.views.3.12":"5"' in data
    assert decode_checkpoint_v2(data, "here") == checkpoint


@pytest.mark.parametrize(
    "ssp",
    [SystemStreamPartition("ka.fka", "s", 0), SystemStreamPartition("kafka", "s", -1)],
    ids=["dot in system", "negative partition"],
)
def test_input_whose_key_could_not_be_read_back_is_refused(ssp: SystemStreamPartition) -> None:
    with pytest.raises(ValueError, match="could not be read back"):
        encode_checkpoint_v2(CheckpointV2(CheckpointId(1, 2), {ssp: "5"}))


def test_unknown_fields_of_a_checkpoint_are_ignored() -> None:
    assert decode_checkpoint_v2(minimal_v2(schema={"a": [1]}), "here") == CheckpointV2(
        CheckpointId(1, 2), {}
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"\xff",
        GOLDEN_V2[:-1],
        minimal_v2(version=1),
        minimal_v2(checkpoint_id="yesterday"),
        minimal_v2(checkpoint_id=12),
        minimal_v2(input_offsets=None),
        minimal_v2(input_offsets={"kafka.page.0": 5}),
        minimal_v2(input_offsets={"kafka": "5"}),
        minimal_v2(input_offsets={"kafka.0": "5"}),
        minimal_v2(input_offsets={"kafka.page.x": "5"}),
        minimal_v2(input_offsets={"kafka.page.01": "5"}),
        minimal_v2(state_checkpoint_markers={"blob": "marker"}),
        minimal_v2(state_checkpoint_markers={"blob": {"s": None}}),
        b'{"checkpoint-id":"1-2"}',
    ],
    ids=repr,
)
def test_checkpoint_v2_of_another_form_is_corrupt(data: bytes) -> None:
    with pytest.raises(CheckpointCorruptError):
        decode_checkpoint_v2(data, "here")


@pytest.mark.parametrize("data", [minimal_v2(version=3), b'{"version":3}'], ids=repr)
def test_checkpoint_of_a_form_to_come_is_no_damage(data: bytes) -> None:
    with pytest.raises(UnknownFormatError, match="here version=3"):
        decode_checkpoint_v2(data, "here")


ENTRIES: list[AttemptEntry] = [
    FinishedTask(decode_checkpoint_v2(GOLDEN_V2, "golden"), VersionId(7, "0123456789abcdef")),
    FinishedTask(CheckpointV2(CheckpointId(1, 2), {}), None),
    FinishedTask(CheckpointV2(CheckpointId(1, 2), {}), None, base_id=CheckpointId(1, 1)),
    FinishedTask(
        CheckpointV2(CheckpointId(1, 2), {}),
        None,
        7,
        30,
        uploads={BackendName("blob"): BackendUpload(bytes=7, elapsed_ms=20)},
        changed_bytes=0,
        state_bytes=4096,
    ),
    FailedTask("upload", "no space left: root=…"),
]


@pytest.mark.parametrize(
    "entry", ENTRIES, ids=["finished", "empty state", "increment", "figures", "failed"]
)
def test_entry_of_an_attempt_comes_back(entry: AttemptEntry) -> None:
    data = encode_attempt_entry(entry)

    assert decode_attempt_entry(data, "here") == entry
    for damaged in (data[:-1], data[:40], b"", data[:-3] + b"#" + data[-2:]):
        with pytest.raises(CheckpointCorruptError, match="here"):
            decode_attempt_entry(damaged, "here")


def test_checkpoint_stands_in_an_entry_as_samza_writes_it() -> None:
    assert GOLDEN_V2 in encode_attempt_entry(ENTRIES[0])


def test_other_frame_is_no_entry() -> None:
    with pytest.raises(CheckpointCorruptError, match="kind=epoch"):
        decode_attempt_entry(frame("epoch", b"{}"), "here")
