"""What the crash harness's verifiers read and keep account of: each of them can say no."""

import io
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from rocksdict import Options, Rdict
from typing_extensions import override

from chaos.evidence.deltas import load_upload, parse_delta
from chaos.evidence.files import LocalFiles
from chaos.evidence.leftovers import find_leftovers
from chaos.evidence.logs import FileLog
from chaos.evidence.remote import Reader, database_content
from chaos.evidence.snapshots import Snapshot
from chaos.plain.log_evidence import TaskHistory
from chaos.spark.expected import Expected, Times
from chaos.spark.frames import parse_frame
from chaos.spark.ledger import Ledger
from chaos.spark.location_watch import LocationWatch
from chaos.spark.log_story import LogStory
from chaos.spark.lost_files import LostFiles
from chaos.spark.lost_log import LostLog
from chaos.spark.places import Places
from chaos.spark.plan import Loss
from chaos.spark.state_bytes import held_in
from chaos.spark.watch import Watch
from statekeep.checkpoint.records import Record
from statekeep.stores.delta import DeltaHeader, DeltaWriter

PLACE = "tally/state-77aa/blob-1/main/Partition_0/state"
RECORD_KINDS = [str(kind.__struct_config__.tag) for kind in get_args(Record)]
GOLDEN = Path(__file__).parents[1] / "golden"


def record(kind: str, nonce: str, **fields: object) -> Mapping[str, object]:
    return {"type": kind, "epoch": 1, "nonce": nonce, **fields}


def commit(nonce: str, attempt: int, batch: int) -> Mapping[str, object]:
    names = {"attempt-epoch": 1, "attempt": attempt, "batch": batch}
    identity = {"stores": {"main": ["counts"]}}
    return record("commit", nonce, **names, **{"checkpoint-id": nonce, "identity": identity})


def abort(nonce: str, number: int) -> Mapping[str, object]:
    return record("void", nonce, **{"attempt-epoch": 1, "attempt": number})


def frame(payload: Mapping[str, object]) -> bytes:
    data = json.dumps(payload).encode()
    kind = str(payload["type"])
    crc = zlib.crc32(kind.encode() + data)
    return f"statekeep 1 {kind} {crc:08x} {len(data)}\n".encode() + data


def attempt(nonce: str, number: int) -> Mapping[str, object]:
    return record("attempt", nonce, attempt=number, batch=number)


STORY = [attempt("a", 1), commit("b", 1, 1), attempt("c", 2), commit("d", 2, 2), attempt("e", 3)]


def story(*more: Mapping[str, object]) -> LogStory:
    return LogStory().fold(list(enumerate([*STORY, *more])))


def numbers(failures: Sequence[str]) -> set[str]:
    return {failure.split(":")[0] for failure in failures}


def test_a_log_that_is_in_order_says_nothing() -> None:
    assert story().failures == []


def test_a_record_that_stands_in_the_log_twice_is_reported() -> None:
    assert "02" in numbers(story(record("epoch", "x"), record("epoch", "x")).failures)


def history(*more: Mapping[str, object]) -> TaskHistory:
    history = TaskHistory("Partition 0")
    for position, each in enumerate([*STORY, *more]):
        history.fold(position, each)
    return history


def test_the_log_of_a_task_that_begins_anew_after_an_abort_is_in_order() -> None:
    found = history(abort("f", 3), attempt("g", 4), commit("h", 4, 3))
    assert found.problems == []
    assert found.aborted == {(1, 3)}
    assert story(abort("f", 3), attempt("g", 4), commit("h", 4, 3)).failures == []


def test_a_commit_behind_its_own_abort_is_reported() -> None:
    assert [number for number, _ in history(abort("f", 3), commit("g", 3, 3)).problems] == [12]
    assert numbers(story(abort("f", 3), commit("g", 3, 3)).failures) == {"12"}


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_each_kind_of_record_is_known_to_those_who_read_logs(kind: str) -> None:
    for read in (history, story):
        with suppress(KeyError):  # it is read as its kind, but this one lacks the fields
            read(record(kind, "f"))


def test_an_unknown_kind_of_record_is_refused() -> None:
    for read in (history, story):
        with pytest.raises(ValueError, match="no such kind of record: abort"):
            read(record("abort", "f"))


class PlaceOnHdfs(LocalFiles):
    """A place that can tell what was left there."""

    def __init__(self, root: Path, unfinished: Sequence[str], empty: Sequence[str] = ()) -> None:
        super().__init__(root)
        self._unfinished = set(unfinished)
        self._empty = set(empty)

    @override
    def unfinished(self, prefix: str) -> set[str]:
        return self._unfinished

    @override
    def empty_directories(self, prefix: str) -> set[str]:
        return self._empty


@pytest.mark.parametrize(
    ("name", "is_left"),
    [
        (f"{PLACE}/7_0000000100000002{'ab' * 8}.snapshot", True),
        (f"{PLACE}/7_0000000100000003{'ab' * 8}.delta", False),
        (f"{PLACE}/6_0000000100000001{'ab' * 8}.snapshot", False),
        (f"tally/log/{4:020d}.json", True),
        (f"tally/log/{5:020d}.json", False),
        ("tally/checkpoints/1-2/Partition_0/000000", True),
        ("tally/checkpoints/1-3/Partition_0/000000", False),
        ("tally/log-probe/ab", False),
        ("tally/checkpoints/events-11/000000/000000", True),
        ("tally/checkpoints/events-12/000000/000000", False),
    ],
    ids=[
        *("of a closed attempt", "of a retained commit", "of a delta that is needed"),
        *("of a trimmed position", "of the end of the log"),
        *("a checkpoint of a closed attempt", "a checkpoint of a retained commit", "a probe"),
        *("events of an old session", "events of a session that is kept"),
    ],
)
def test_parts_that_nothing_explains_are_reported(
    tmp_path: Path, name: str, *, is_left: bool
) -> None:
    for path in (
        f"{PLACE}/6_0000000100000001{'ab' * 8}.delta",
        f"tally/log-floor/{5:020d}",
        "tally/checkpoints/events-21/000000/000000",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    left = find_leftovers(PlaceOnHdfs(tmp_path, [name]), "tally", lambda _: {(1, 3)})
    assert left == [f"parts of {name}"] * is_left


def test_a_directory_that_is_left_empty_is_reported(tmp_path: Path) -> None:
    place = PlaceOnHdfs(tmp_path, [], [PLACE])
    left = find_leftovers(place, "tally", lambda _: set())
    assert left == [f"the empty directory {PLACE}"]


def watch_of(tmp_path: Path) -> tuple[Watch, Path]:
    places = Places(tmp_path)
    places.prepare()
    log = places.backup("blob-1") / "tally" / "log"
    log.mkdir(parents=True)
    for position, payload in enumerate(STORY):
        (log / f"{position:020d}.json").write_bytes(frame(payload))
    files = LocalFiles(places.backup("blob-1"))
    ledger = Ledger("blob-1", files, "tally")
    watch = Watch(places, FileLog(files, "tally"), [ledger], is_every_batch=False)
    watch.poll(is_location_whole=False)
    return watch, log


def test_a_second_record_at_one_position_is_reported(tmp_path: Path) -> None:
    watch, log = watch_of(tmp_path)
    watch.check_one_winner()
    assert watch.failures == []
    (log / f"{2:020d}.json").write_bytes(frame(record("epoch", "z")))
    watch.check_one_winner()
    assert numbers(watch.failures) == {"02"}


def test_what_is_written_anew_below_the_floor_is_no_second_winner(tmp_path: Path) -> None:
    watch, log = watch_of(tmp_path)
    (log.with_name("log-floor")).mkdir()
    (log.with_name("log-floor") / f"{3:020d}").touch()
    (log / f"{2:020d}.json").write_bytes(frame(record("epoch", "z")))
    watch.check_one_winner()
    assert watch.failures == []


def test_a_record_that_was_trimmed_unseen_is_reported(tmp_path: Path) -> None:
    watch, log = watch_of(tmp_path)
    watch.check_unbroken()
    assert watch.failures == []
    (log / f"{len(STORY) + 2:020d}.json").write_bytes(frame(record("epoch", "z")))
    watch.poll(is_location_whole=False)
    watch.check_unbroken()
    assert numbers(watch.failures) == {"00"}


@pytest.mark.parametrize(
    ("number", "more", "expected"),
    [
        (3, [], {"15"}),
        (2, [], {"15"}),
        (1, [], {"15"}),
        (1, [record("release", "r", positions=[1])], set()),
        (3, [record("void", "v", **{"attempt-epoch": 1, "attempt": 3})], set()),
        (3, [record("base", "w", epoch=2, head=2)], set()),
        (9, [record("base", "w", epoch=2, head=2)], set()),
        (9, [], {"15"}),
        (2, [record("base", "w", epoch=2, head=2)], {"15"}),
        (2, [record("bad-marker", "b", marker=f"{PLACE}/1-2/0c1f-snapshot-index-1.json")], set()),
        (2, [record("bad-marker", "b", marker=f"{PLACE}/1-3/0c1f-snapshot-index-1.json")], {"15"}),
    ],
    ids=[
        "open",
        "newest",
        "retained",
        "released",
        "void",
        "overtaken",
        "written where the log is trimmed",
        "unknown",
        "committed before",
        "bad",
        "other bad",
    ],
)
def test_a_blob_may_go_once_its_attempt_is_closed(
    tmp_path: Path, number: int, more: list[Mapping[str, object]], expected: set[str]
) -> None:
    path = tmp_path / PLACE / f"1-{number}" / "0c1f-0-CURRENT"
    path.parent.mkdir(parents=True)
    path.touch()
    ledger = Ledger("blob-1", LocalFiles(tmp_path), "tally")
    assert not ledger.gone()
    path.unlink()
    gone = ledger.gone()
    assert len(gone) == 1
    assert numbers(ledger.check(gone, story(*more))) == expected


@pytest.mark.parametrize(
    ("name", "closed", "expected"),
    [
        ("1-4/aaaa-0-small-files.pack", 5, set()),
        ("1-4/aaaa-0-small-files.pack", None, {"15"}),
        ("1-4/0c1f-0-small-files.pack", 5, {"15"}),
    ],
    ids=["of an upload that was made again", "before a later attempt ended", "of the commit"],
)
def test_what_was_uploaded_twice_may_go_once_a_later_attempt_is_closed(
    tmp_path: Path, name: str, closed: int | None, expected: set[str]
) -> None:
    path = tmp_path / PLACE / name
    path.parent.mkdir(parents=True)
    path.touch()
    ledger = Ledger("blob-1", LocalFiles(tmp_path), "tally")
    ledger.gone()
    path.unlink()
    marker = f"{PLACE}/1-4/0c1f-snapshot-index-1.json"
    checkpoint = {"state-checkpoint-markers": {"blob-1": {"state": marker}}}
    committed = {**commit("f", 4, 3), "checkpoints": {"Partition 0": checkpoint}}
    aborted = record("void", "v", **{"attempt-epoch": 1, "attempt": closed})
    more = [attempt("g", 4), committed, attempt("h", 5), *([aborted] if closed else [])]
    assert numbers(ledger.check(ledger.gone(), story(*more))) == expected


def test_a_touched_checkpoint_location_is_reported(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("before")
    watch = LocationWatch(tmp_path)
    watch.begin()
    assert (watch.changed(), watch.added()) == ([], [])
    (tmp_path / "offsets" / "0").write_text("after!")
    (tmp_path / "offsets" / "1").write_text("new")
    assert (watch.changed(), watch.added()) == (["offsets/0"], ["offsets/1"])


def test_a_damaged_record_is_damaged_and_comes_back_whole(tmp_path: Path) -> None:
    _, log = watch_of(tmp_path)
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    lost = LostLog(log.parent, tmp_path / "kept", random.Random(1))
    assert lost.damage()
    assert lost.damaged_position is not None
    damaged = log / f"{lost.damaged_position:020d}.json"
    with pytest.raises(Exception, match="differ"):
        parse_frame(damaged.read_bytes(), "")
    lost.give_back()
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before


def test_a_lost_log_must_be_refused_and_comes_back(tmp_path: Path) -> None:
    _, log = watch_of(tmp_path)
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    lost = LostFiles(Places(tmp_path), 1, log.parent)
    assert lost.lose(Loss.LOG)
    assert not log.exists()
    assert lost.must_refuse()
    lost.put_back()
    assert len(list(log.iterdir())) == len(STORY)


def test_a_database_and_the_deltas_after_it_are_read_key_by_key(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "db"), Options(raw_mode=True))
    database[b"kept"], database[b"changed"], database[b"deleted"] = b"1", b"2", b"3"
    database.close()
    image = {path.name: path.read_bytes() for path in (tmp_path / "db").iterdir()}
    delta = io.BytesIO()
    writer = DeltaWriter(delta, DeltaHeader(store="s", parent="v", version="w"))
    writer.write({b"changed": b"20", b"deleted": None, b"new": b"4"})
    writer.finish()
    snapshot = Snapshot(frozenset(), None, "w", image, [delta.getvalue()])
    reader = Reader()
    try:
        content = snapshot.content(partial(database_content, reader))
    finally:
        reader.close()
    assert content == {b"kept": b"1", b"changed": b"20", b"new": b"4"}


def test_the_state_of_the_tally_is_read_from_the_bytes_of_its_stores() -> None:
    variables = {"total": {"id": 1, "kind": "value"}, "residues": {"id": 2, "kind": "map"}}
    key = b"\x01key-1\x00\x00"
    store = {
        b"\x00\x00": json.dumps({"variables": variables}).encode(),
        b"\x00\x01" + key: msgspec.msgpack.encode([2, 7]),
        b"\x00\x02" + key + b"\x01" + (3 + (1 << 63)).to_bytes(8, "big"): b"\x91\x02",
    }
    assert held_in([store]) == {("total", "key-1", 0): (2, 7), ("residues", "key-1", 3): (2,)}
    with pytest.raises(ValueError, match="two stores have"):
        held_in([store, store])


def test_times_in_the_bytes_of_a_store_stand_in_an_index_too() -> None:
    def time(ms: int) -> bytes:
        return (ms + (1 << 63)).to_bytes(8, "big")

    variables = {
        "recent": {"id": 1, "kind": "map", "expires": True},
        "$ttl_recent": {"id": 2, "kind": "by_time"},
        "$eventTimers": {"id": 3, "kind": "timers"},
        "$eventTimers_byTime": {"id": 4, "kind": "by_time"},
    }
    key = b"\x01key-1\x00\x00"
    residue = key + b"\x01" + time(3)
    store = {
        b"\x00\x00": json.dumps({"variables": variables}).encode(),
        b"\x00\x01" + residue: time(50) + b"\x91\x02",
        b"\x00\x02" + time(50) + residue: b"\xc0",
        b"\x00\x03" + key + time(70): b"\xc0",
        b"\x00\x04" + time(70) + key: b"\xc0",
    }
    assert held_in([store]) == {("recent", "key-1", 3): (2, 50), ("timers", "key-1", 70): ()}
    for index in (b"\x00\x02", b"\x00\x04"):
        damaged = {key: value for key, value in store.items() if not key.startswith(index)}
        with pytest.raises(ValueError, match="an index of times differs"):
            held_in([damaged])


def test_the_fold_drops_late_rows_and_fires_what_is_due() -> None:
    expected = Expected(["EventTime"])
    first = Times(processing_ms=1, watermark_ms=0, late_ms=0)
    assert expected.fold([("key-1", 1)], first) == [("key-1", 1, 1, None)]
    assert expected.state[0]["timers", "key-1", 1_005_000] == ()
    due = Times(processing_ms=2, watermark_ms=1_005_000, late_ms=1_002_000)
    assert expected.fold([("key-1", 2)], due) == [("key-1", -1, 1_005_000, None)]
    assert expected.state == [
        {
            ("total", "key-1", 0): (1, 1),
            ("residues", "key-1", 1): (1,),
            ("rung", "key-1", 0): (1, 1_005_000),
        }
    ]


def test_the_fold_forgets_what_has_outlived_its_time_in_either_operator() -> None:
    expected = Expected(["None", "ProcessingTime"])
    assert expected.fold([("key-1", 1)], Times(10_000, 0, 0)) == [
        ("half-1", -1, 10_000, 1),
        ("half-1", 1, 32, 1),
    ]
    assert expected.state[1]["recent", "half-1", 2] == (1, 11_500)
    expected.fold([], Times(11_500, 0, 0))
    assert ("recent", "half-1", 2) not in expected.state[1]
    assert expected.state[0]["total", "key-1", 0] == (1, 1)


def test_uploads_of_the_hdfs_backend_are_folded_by_their_lineage() -> None:
    files = LocalFiles(GOLDEN / "hdfs")
    markers = {name.rpartition(".")[0] for name in files.names("") if name.endswith(".delta")}
    assert markers
    assert all(load_upload(files, f"./{marker}") for marker in sorted(markers))


def test_a_flipped_bit_in_a_delta_is_reported() -> None:
    (path, *_) = sorted((GOLDEN / "hdfs").rglob("*.delta"))
    data = path.read_bytes()
    parse_delta(data)
    for position in range(8, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(ValueError, match=r"."):
            parse_delta(bytes(damaged))
