"""The samples in docs/reference/formats.md are what the code reads."""

import io
import re
from pathlib import Path

from encoded_kit import KEY_LINE

from statekeep.backends.blob.index import (
    SCHEMA_VERSION,
    IndexAddition,
    SnapshotIndex,
    decode_index,
    encode_index,
)
from statekeep.backends.encryption_keys import KeyRing
from statekeep.backends.seals import Sealer
from statekeep.checkpoint.event_log import decode_segment
from statekeep.checkpoint.framing import unframe
from statekeep.checkpoint.records import AttemptRecord, decode_record
from statekeep.checkpoint.serde import (
    FailedTask,
    FinishedTask,
    decode_attempt_entry,
    decode_checkpoint_v2,
    decode_entries,
    encode_entries,
)
from statekeep.stores.delta import DeltaHeader, DeltaReader
from statekeep.stores.version import SealManifest
from statekeep.testing.executor import SerialExecutor

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "formats.md").read_text()
SAMPLES = [
    text.encode() for text in re.findall(r"```text\n(statekeep 1 .*?)\n```", PAGE, re.DOTALL)
]
SEALED = [data for data in SAMPLES if data.startswith(b"statekeep 1 sealed ")]
FRAMES = [data for data in SAMPLES if data not in SEALED]
RECORDS = {
    *("epoch", "base", "batch", "attempt", "commit", "changed-commit", "reshaped-commit", "void"),
    *("release", "pin", "unpin", "kept", "bad-marker", "moved"),
    *("clone-pin", "kept-for-clones", "shared-attempt", "shared-commit"),
}
ENTRIES = {"finished-task", "failed-task"}


def sample_below(heading: str, language: str = "json") -> bytes:
    section = PAGE.partition(f"# {heading}\n")[2]
    return section.partition(f"```{language}\n")[2].partition("\n```")[0].encode()


def framed(*kinds: str) -> dict[str, bytes]:
    """Return the framed samples of some kinds."""
    samples = {unframe(data, where="formats.md").kind: data for data in FRAMES}
    return {kind: samples[kind] for kind in kinds}


def test_every_framed_sample_is_of_a_known_kind() -> None:
    kinds = {unframe(data, where="formats.md").kind for data in FRAMES}
    assert kinds == RECORDS | ENTRIES | {
        *("seal-manifest", "task-checkpoint", "task-entries", "events")
    }


def test_every_record_of_the_log_can_be_read() -> None:
    for data in framed(*RECORDS).values():
        decode_record(data, where="formats.md")


def test_a_batch_record_is_said_to_come_before_the_sink() -> None:
    section = PAGE.partition("\n### batch\n")[2].partition("\n### ")[0]
    assert "appends the record before it calls the sink" in section


def test_every_entry_of_the_checkpoint_store_can_be_read() -> None:
    for data in framed(*ENTRIES).values():
        decode_attempt_entry(data, where="formats.md")
    pack = framed("task-entries")["task-entries"]
    entries = decode_entries(pack, where="formats.md")
    assert encode_entries(entries) == pack
    kinds = [type(decode_attempt_entry(entry, where="formats.md")) for entry in entries.values()]
    assert kinds == [FinishedTask, FailedTask]


def test_every_progress_event_can_be_read() -> None:
    events = decode_segment(framed("events")["events"], where="formats.md")
    assert [event.sequence for event in events] == [0, 1, 2]


def test_every_checkpoint_sample_can_be_read() -> None:
    assert decode_checkpoint_v2(sample_below("CheckpointV2"), "formats.md").input_offsets


def test_the_seal_manifest_and_the_checkpoint_beside_it_can_be_read() -> None:
    samples = framed("seal-manifest", "task-checkpoint")
    manifest = SealManifest.decode(samples["seal-manifest"], where="formats.md")
    assert manifest.encode() == samples["seal-manifest"]
    assert manifest.parent == manifest.lineage[0]
    checkpoint = unframe(samples["task-checkpoint"], where="formats.md").payload
    assert decode_checkpoint_v2(checkpoint, "formats.md").state_markers


def test_the_snapshot_index_is_what_the_code_writes() -> None:
    sample = sample_below("Snapshot index")
    index = decode_index(sample, where="formats.md")
    assert isinstance(index, SnapshotIndex)
    assert index.schema_version == SCHEMA_VERSION
    assert encode_index(index) == sample
    other = PAGE.partition("An addition to it, which holds its own delta:\n\n```json\n")[2]
    written = other.partition("\n```")[0].encode()
    addition = decode_index(written, where="formats.md")
    assert isinstance(addition, IndexAddition)
    assert encode_index(addition.joined(index, where="formats.md")) == written


def test_the_encoded_stream_is_the_golden_one() -> None:
    section = PAGE.partition("### Encoded stream\n")[2]
    golden = Path(__file__).parents[2] / "golden" / "encoded-stream-2.hex"
    assert section.split("```")[1].removeprefix("text").split() == golden.read_text().split()


def test_the_sealed_record_is_the_one_of_position_0() -> None:
    (sample,) = SEALED
    sealer = Sealer(
        [KeyRing(lambda: KEY_LINE, "formats.md")],
        "flights",
        is_on=True,
        accepts_plain=lambda: False,
        executor=SerialExecutor(),
    )
    opened = sealer.open(("job-log", "0"), sample, where="formats.md")
    assert opened is not None
    assert opened.data == next(d for d in FRAMES if unframe(d, where="formats.md").kind == "epoch")
    assert sealer.seal(("job-log", "0"), opened.data).data == sample


def test_the_delta_has_one_put_and_one_delete() -> None:
    section = PAGE.partition("one delete (`d`), in hexadecimal:\n")[2]
    data = bytes.fromhex(section.split("```")[1].removeprefix("text"))
    reader = DeltaReader(io.BytesIO(data), where="formats.md")
    assert reader.header == DeltaHeader(version="1_00000000")
    assert list(reader) == [(b"k", b"v"), (b"d", None)]


def test_the_attempt_names_what_must_be_uploaded() -> None:
    record = decode_record(framed("attempt")["attempt"], where="formats.md")
    assert isinstance(record, AttemptRecord)
    assert record.uploads == ["Partition 3"]
