"""State files in the form of Spark's own provider."""

import io
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.hdfs import spark_files
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.backends.hdfs.spark_files import (
    export_snapshot,
    plan_spark_load,
    read_spark_file,
    write_spark_file,
)
from statekeep.checkpoint.checkpoints import BackendName, CheckpointId, CheckpointV2, Marker
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError
from statekeep.stores.delta import Change
from statekeep.stores.memory import MemoryStore
from statekeep.testing.backend_harness import STORE
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.key_value_harness import KeyValueHarness

GOLDEN = Path(__file__).parents[2] / "golden" / "spark-hdfs"
ENTRIES = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=400)))


def written(entries: list[Change]) -> bytes:
    file = io.BytesIO()
    write_spark_file(entries, file)
    return file.getvalue()


def read(data: bytes, *, may_delete: bool = True) -> list[Change]:
    return list(read_spark_file(io.BytesIO(data), where="w", may_delete=may_delete))


def test_an_exported_snapshot_is_durable_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, bool]] = []
    target = tmp_path / "3.snapshot"

    def note(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), target.exists()))

    monkeypatch.setattr(os, "fsync", note)
    store = MemoryStore(STORE, tmp_path / "store", is_new=True)
    store.put(b"k", b"v")
    assert export_snapshot(store, tmp_path, 3) == target
    assert synced == [(tmp_path / ".3.snapshot.tmp", False), (tmp_path, True)]
    assert read(target.read_bytes(), may_delete=False) == [(b"k", b"v")]


@settings(deadline=None)
@given(entries=ENTRIES)
def test_what_is_written_is_read(entries: list[Change]) -> None:
    assert read(written(entries)) == entries


def test_records_longer_than_a_block_are_read() -> None:
    entries: list[Change] = [(b"k" * 70_000, bytes(200_000)), (b"d", None)]
    assert read(written(entries)) == entries


@settings(deadline=None)
@given(at=st.integers(0, 400), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_changes_nothing(at: int, bit: int) -> None:
    entries: list[Change] = [(b"key %d" % n, b"%d" % (n * 7919)) for n in range(20)]
    data = bytearray(written(entries))
    data[at % len(data)] ^= 1 << bit
    try:
        found = read(bytes(data))
    except CheckpointCorruptError:
        return
    assert found == entries


def test_a_truncated_file_is_refused() -> None:
    data = written([(b"k", b"v")])
    for size in range(len(data) - 21):
        with pytest.raises(CheckpointCorruptError):
            read(data[:size])


def test_a_delete_in_a_snapshot_is_refused() -> None:
    with pytest.raises(CheckpointCorruptError, match="value size is below 0"):
        read(written([(b"k", None)]), may_delete=False)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (struct.pack(">i", -2), "a key size is below 0: w bytes=-2"),
        (struct.pack(">i1si", 1, b"k", -2), "a value size is below 0: w bytes=-2"),
    ],
    ids=["key", "value"],
)
def test_a_size_that_means_nothing_is_refused_in_a_delta_too(raw: bytes, error: str) -> None:
    file = io.BytesIO()
    spark_files._write_block(raw, file)
    with pytest.raises(CheckpointCorruptError, match=error):
        read(file.getvalue())


@pytest.mark.parametrize(
    ("version", "names", "plan"),
    [
        (0, [], []),
        (2, ["1.delta", "2.delta"], ["1.delta", "2.delta"]),
        (3, ["2.snapshot", "3.delta", "4.delta"], ["2.snapshot", "3.delta"]),
        (3, ["3.snapshot", "3.delta", "4.snapshot"], ["3.snapshot"]),
    ],
    ids=["empty", "from empty", "after a snapshot", "a snapshot"],
)
def test_a_version_is_its_newest_snapshot_and_the_deltas_since(
    version: int, names: list[str], plan: list[str]
) -> None:
    assert plan_spark_load(version, names) == plan


def test_a_missing_delta_is_named() -> None:
    with pytest.raises(BlobNotFoundError, match=r"2\.delta"):
        plan_spark_load(3, ["1.snapshot", "3.delta"])


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        plan_spark_load(-1, [])


COUNTS = {
    1: {b"key0": 1, b"key1": 1, b"key2": 1, b"key3": 1, b"key6": 1},
    2: {b"key0": 1, b"key1": 1, b"key2": 2, b"key3": 2, b"key4": 1, b"key5": 1, b"key6": 2},
    3: {b"key0": 2, b"key1": 2, b"key2": 2, b"key3": 2, b"key4": 2, b"key5": 2, b"key6": 3},
    4: {b"key0": 3, b"key1": 3, b"key2": 3, b"key3": 3, b"key4": 3, b"key5": 2, b"key6": 3},
}
"""What the query that wrote the golden files gave to its sink, by version."""


@pytest.mark.parametrize("version", COUNTS)
@pytest.mark.parametrize("lost", [None, "3.snapshot"], ids=["all files", "without the snapshot"])
def test_what_spark_wrote_is_read_as_spark_counted(version: int, lost: str | None) -> None:
    names = {path.name for path in GOLDEN.iterdir()} - {lost}
    state: dict[bytes, bytes | None] = {}
    for name in plan_spark_load(version, names):
        may_delete = name.endswith(".delta")
        with (GOLDEN / name).open("rb") as file:
            state.update(read_spark_file(file, where=name, may_delete=may_delete))
    # Rows of Spark: a word of null bits and a word per column; a text's word holds its length.
    found = {
        key[16 : 16 + struct.unpack_from("<I", key, 8)[0]]: struct.unpack_from(
            "<q", value or b"", 8
        )[0]
        for key, value in state.items()
    }
    assert found == COUNTS[version]


def test_records_of_spark_survive_our_writing() -> None:
    data = (GOLDEN / "3.snapshot").read_bytes()
    entries = read(data, may_delete=False)
    assert read(written(entries)) == entries
    assert len(written(entries)) == pytest.approx(len(data), rel=0.2)


@pytest.mark.asyncio
async def test_a_directory_of_sparks_is_a_start_and_the_first_commit_is_a_full_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "place"
    directory = place / "state" / "0" / "3"
    directory.mkdir(parents=True)
    directory.joinpath("1.delta").write_bytes(written([(b"a", b"1"), (b"b", b"1")]))
    directory.joinpath("2.delta").write_bytes(written([(b"a", None), (b"c", b"2")]))
    (directory / "another-store").mkdir()
    (directory / "another-store" / "2.snapshot").write_bytes(written([(b"z", b"9")]))
    factory = HdfsBackendFactory(BackendName("hdfs"), {"uri": f"file://{place}"})
    task = KeyValueHarness(factory, SerialExecutor(), FakeClock(), tmp_path / "local")
    await task.start()
    content = {"b": b"1", "c": b"2"}
    start = task.open_attempt(task.seal(content))
    commit = task.record(start, {STORE: Marker("state/0/3/2")})
    assert (await task.restore(commit.checkpoint)).content == {STORE: content}
    aborted = task.open_attempt(task.seal({**content, "x": b"aborted"}))
    await task.upload(aborted)
    task.abort(aborted)
    await task.clean_up()  # while the start is retained
    assert list(place.rglob(f"{STORE}/*")) == []
    next_commit = await task.commit(task.seal({**content, "d": b"3"}))
    (only,) = place.rglob(f"{STORE}/*")
    assert only.suffix == ".snapshot"
    assert [record.getMessage() for record in caplog.records if record.levelno > 20] == []
    assert (await task.restore(next_commit.checkpoint)).content == {STORE: {**content, "d": b"3"}}
    gone = CheckpointV2(
        CheckpointId(1, 1), {}, {BackendName("hdfs"): {STORE: Marker("state/0/3/-1")}}
    )
    with pytest.raises(CheckpointCorruptError, match="negative"):
        await task.restore(gone)
    await task.close()
