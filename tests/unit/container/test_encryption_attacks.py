"""An attacker who can write to the storage of an encrypted job, but has no key, gets nothing accepted."""

import base64
import json
import logging
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from encoded_kit import KEY_LINE

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import CheckpointCorruptError, ConfigError, StateBackupError
from statekeep.testing.clock import FakeClock

INPUT = SystemStreamPartition("gen", "numbers", 0)
TASK = "Partition 0"
DAY_NS = 86_400 * 10**9
NEW_LINE = f"2026-12 {base64.b64encode(b'n' * 32).decode()}"


class Job:
    """A job in plain Python, whose place an attacker can write to."""

    def __init__(self, root: Path, **settings: str) -> None:
        self.root = root
        self.place = root / "place"
        self.keys = root / "keys"
        root.mkdir(parents=True, exist_ok=True)
        self.keys.write_text(KEY_LINE)
        self.encryption = {
            "blob.store.encryption": "aes-256-gcm",
            "blob.store.encryption.keys": f"file:{self.keys}",
        }
        self.settings = settings
        self.clock = FakeClock()

    def config(self, **changes: str) -> Config:
        return load_dict(
            {
                "job.name": "job",
                "job.logged.store.base.dir": str(self.root / "local"),
                "stores.backup.factories": "blob",
                "blob.store.uri": self.place.as_uri(),
                "checkpoint.retain.commits": "2",
                "checkpoint.clean.up.ms": "0",
                **self.encryption,
                **self.settings,
                **changes,
            }
        )

    async def commit(self, *values: bytes, **changes: str) -> None:
        """Commit once for each value, in one run."""
        async with Container(self.config(**changes), clock=self.clock) as container:
            task = await container.start_task(TASK, ["s"])
            for number, value in enumerate(values):
                task.store("s").put(b"k", value)
                offsets = {INPUT: str(number)}
                await (await task.commit(offsets, force=True)).wait()

    async def restored(self, **changes: str) -> bytes | None:
        """Start on another machine and return what the key has."""
        shutil.rmtree(self.root / "local", ignore_errors=True)
        async with Container(self.config(**changes), clock=self.clock) as container:
            task = await container.start_task(TASK, ["s"])
            return task.store("s").get(b"k")

    @property
    def log(self) -> Path:
        return self.place / "job" / "main" / "Partition_0" / "log"

    def records(self) -> list[Path]:
        return sorted(self.log.glob("*.json"))

    def commits(self) -> list[dict[str, Any]]:
        found = [json.loads(payload_of(path)) for path in self.records()]
        return [record for record in found if record["type"] == "commit"]

    def append_plain(self, record: dict[str, Any]) -> None:
        """Write a record behind the last one, as any writer can."""
        payload = json.dumps(record | {"nonce": "f0" * 16}).encode()
        kind = record["type"].encode()
        crc = zlib.crc32(payload, zlib.crc32(kind))
        position = int(self.records()[-1].stem) + 1
        framed = b"statekeep 1 %s %08x %d\n" % (kind, crc, len(payload)) + payload
        (self.log / f"{position:020d}.json").write_bytes(framed)

    def indexes(self) -> list[Path]:
        return sorted(self.place.rglob("*-snapshot-index-*"), key=lambda p: int(p.parent.name[2:]))


def payload_of(path: Path) -> bytes:
    """Return the JSON of a record, whether it is sealed or not."""
    return path.read_bytes().rpartition(b"\n")[2]


def marker_of(record: dict[str, Any]) -> str:
    checkpoint = record["checkpoints"][TASK]
    return str(checkpoint["state-checkpoint-markers"]["blob"]["s"])


def with_marker(record: dict[str, Any], marker: str) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(record))
    changed["checkpoints"][TASK]["state-checkpoint-markers"]["blob"]["s"] = marker
    return changed


async def attacker_of(tmp_path: Path, job: Job) -> Job:
    """Return a job of the same name without encryption, on a disk of the attacker's."""
    attacker = Job(tmp_path / "attacker")
    attacker.encryption = {}
    await attacker.commit(b"forged 1", b"forged 2")
    return attacker


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "victim")


@pytest.mark.asyncio
async def test_a_plain_job_in_place_of_the_encrypted_one_is_refused(
    tmp_path: Path, job: Job
) -> None:
    await job.commit(b"first", b"second")
    attacker = await attacker_of(tmp_path, job)
    shutil.rmtree(job.place)
    shutil.copytree(attacker.place, job.place)
    with pytest.raises(CheckpointCorruptError, match="is not authenticated"):
        await job.restored()


@pytest.mark.asyncio
async def test_a_plain_snapshot_that_a_forged_record_names_is_refused(
    tmp_path: Path, job: Job
) -> None:
    await job.commit(b"first", b"second")
    attacker = await attacker_of(tmp_path, job)
    (state,) = (attacker.place / "job").glob("state-*")
    shutil.copytree(state, job.place / "job" / state.name)
    job.append_plain(with_marker(job.commits()[-1], marker_of(attacker.commits()[-1])))
    with pytest.raises(CheckpointCorruptError, match="is not authenticated"):
        await job.restored()


@pytest.mark.asyncio
async def test_the_encrypted_index_of_an_older_commit_under_a_newer_offset_is_refused(
    job: Job,
) -> None:
    await job.commit(b"first", b"second")
    older, newer = job.commits()[-2:]
    job.append_plain(with_marker(newer, marker_of(older)))
    with pytest.raises(CheckpointCorruptError, match="is not authenticated"):
        await job.restored()


@pytest.mark.asyncio
async def test_an_index_that_is_exchanged_under_its_name_leads_to_an_older_commit(
    tmp_path: Path, job: Job
) -> None:
    await job.commit(b"first", b"second")
    attacker = await attacker_of(tmp_path, job)
    job.indexes()[-1].write_bytes(attacker.indexes()[-1].read_bytes())
    assert await job.restored() == b"first"


def exchange(records: list[Path]) -> None:
    one, two = records[-2].read_bytes(), records[-1].read_bytes()
    records[-2].write_bytes(two)
    records[-1].write_bytes(one)


def repeat_an_older_one(records: list[Path]) -> None:
    records[-1].write_bytes(records[-3].read_bytes())


def leave_one_out(records: list[Path]) -> None:
    """Move the later records down, so that no position is missing."""
    for at, after in zip(records[-3:], records[-2:], strict=False):
        at.write_bytes(after.read_bytes())
    records[-1].unlink()


def change_the_offset(records: list[Path]) -> None:
    """Change what an authenticated record says, and mend every checksum on the way."""
    path = next(p for p in reversed(records) if b'"type":"commit"' in p.read_bytes())
    head, _, rest = path.read_bytes().partition(b"\n")
    *seal, inner_head, payload = rest.split(b"\n") if b" sealed " in head else [head, rest]
    changed = payload.replace(b'"gen.numbers.0":"1"', b'"gen.numbers.0":"9"')
    assert changed != payload
    inner_crc = zlib.crc32(changed, zlib.crc32(b"commit"))
    inner = b"statekeep 1 commit %08x %d\n" % (inner_crc, len(changed)) + changed
    del inner_head
    if seal:
        inner = seal[0] + b"\n" + inner
        crc = zlib.crc32(inner, zlib.crc32(b"sealed"))
        inner = b"statekeep 1 sealed %08x %d\n" % (crc, len(inner)) + inner
    path.write_bytes(inner)


def claim_a_batch(records: list[Path]) -> None:
    """Damage a record and say that it was a batch's, which a job can do without."""
    records[-1].write_bytes(b"statekeep 1 batch 00000000 2\n{}")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "attack",
    [exchange, repeat_an_older_one, leave_one_out, change_the_offset, claim_a_batch],
    ids=["re-ordered", "repeated", "left out", "changed", "said to be a batch"],
)
async def test_a_log_that_was_changed_is_refused(
    job: Job, attack: Callable[[list[Path]], None]
) -> None:
    await job.commit(b"first", b"second")
    attack(job.records())
    with pytest.raises(CheckpointCorruptError):
        await job.restored()


@pytest.mark.asyncio
async def test_a_log_that_was_cut_off_behind_its_commits_is_no_new_job(job: Job) -> None:
    await job.commit(b"first", b"second")
    await job.restored()  # its epoch stands behind the commits
    floor = int(job.records()[-1].stem)
    folder = job.log.parent / "log-floor"
    folder.mkdir(exist_ok=True)
    (folder / f"{floor:020d}").touch()
    with pytest.raises(CheckpointCorruptError, match="cut off"):
        await job.restored()


@pytest.mark.asyncio
async def test_the_log_of_another_task_is_refused(job: Job) -> None:
    await job.commit(b"first")
    other = job.log.parent.with_name("Partition_1")
    shutil.copytree(job.log.parent, other)
    with pytest.raises(CheckpointCorruptError, match="not the one that was written here"):
        async with Container(job.config(), clock=job.clock) as container:
            await container.start_task("Partition 1", ["s"])


@pytest.mark.asyncio
async def test_an_older_whole_log_is_not_noticed_without_something_outside_the_backend(
    job: Job,
) -> None:
    """What `docs/how-to/encrypt.md` says that nothing in the place itself can tell."""
    await job.commit(b"first")
    before = job.root / "before"
    shutil.copytree(job.place, before)
    await job.commit(b"second")
    shutil.rmtree(job.place)
    before.rename(job.place)
    assert await job.restored() == b"first"


@pytest.mark.asyncio
async def test_a_key_may_go_once_no_retained_commit_and_no_record_needs_it(job: Job) -> None:
    await job.commit(b"old 1", b"old 2")
    job.keys.write_text(f"{NEW_LINE}\n{KEY_LINE}")
    assert await job.restored() == b"old 2"
    await job.commit(b"new 1")
    job.keys.write_text(NEW_LINE)
    with pytest.raises(ConfigError, match="key_id=2026-11"):
        await job.restored()
    job.keys.write_text(f"{NEW_LINE}\n{KEY_LINE}")
    await job.commit(b"new 2", b"new 3", b"new 4")
    await job.commit()  # cleans up what the run before did not get to
    job.keys.write_text(NEW_LINE)
    assert await job.restored() == b"new 4"
    assert all(b'"key-id":"2026-12"' in path.read_bytes() for path in job.records())


@pytest.mark.asyncio
async def test_a_plain_job_goes_on_encrypted_until_the_day_of_the_switch_is_over(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    encryption, job.encryption = job.encryption, {}
    await job.commit(b"plain 1", b"plain 2")
    job.encryption = encryption
    with pytest.raises(CheckpointCorruptError, match="is not authenticated") as refused:
        await job.restored()
    assert "plain.until" in "".join(refused.value.hints) + str(refused.value)
    today = job.clock.time_ns() // DAY_NS
    until = {"blob.store.encryption.plain.until": _date(today)}
    with caplog.at_level(logging.WARNING):
        assert await job.restored(**until) == b"plain 2"
    assert "is still accepted" in caplog.text
    for _ in range(
        20
    ):  # until the clean-up, which runs behind the commits, has come to the last one
        await job.commit(b"encrypted 1", b"encrypted 2", b"encrypted 3", **until)
        if all(b'"key-id"' in path.read_bytes() for path in job.records()):
            break
    job.clock.advance(86_400)
    caplog.clear()
    assert await job.restored(**until) == b"encrypted 3"
    assert "is still accepted" not in caplog.text


@pytest.mark.asyncio
async def test_after_that_day_a_plain_record_is_refused_again(job: Job) -> None:
    encryption, job.encryption = job.encryption, {}
    await job.commit(b"plain")
    job.encryption = encryption
    until = {"blob.store.encryption.plain.until": _date(job.clock.time_ns() // DAY_NS - 1)}
    with pytest.raises(CheckpointCorruptError, match="is not authenticated"):
        await job.restored(**until)


@pytest.mark.asyncio
async def test_a_job_whose_encryption_was_switched_off_reads_what_was_encrypted(job: Job) -> None:
    await job.commit(b"encrypted")
    off = {"blob.store.encryption": "none"}
    assert await job.restored(**off) == b"encrypted"
    await job.commit(b"plain", **off)
    assert await job.restored(**off) == b"plain"
    del job.encryption["blob.store.encryption.keys"]
    with pytest.raises(StateBackupError, match="no keys are configured"):
        await job.restored(**off)


@pytest.mark.asyncio
async def test_a_plain_backend_beside_the_encrypted_one_is_reported_at_the_start(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    plain = {
        "stores.backup.factories": "blob,beside",
        "backends.beside.factory": "hdfs",
        "backends.beside.uri": (job.root / "beside").as_uri(),
    }
    with caplog.at_level(logging.WARNING):
        await job.commit(b"value", **plain)
    assert "state is encrypted in some backends only" in caplog.text
    assert "backend=beside encrypted=blob" in caplog.text
    shutil.rmtree(job.place)
    with pytest.raises(StateBackupError):
        await job.restored(**plain, **{"job.log.backend": "blob"})


@pytest.mark.asyncio
async def test_the_log_in_a_plain_backend_is_authenticated_by_the_keys_of_the_encrypted_one(
    job: Job,
) -> None:
    job.settings = {
        "job.log.backend": "beside",
        "backends.beside.factory": "hdfs",
        "backends.beside.uri": (job.root / "beside").as_uri(),
    }
    await job.commit(b"first", b"second")
    job.place = job.root / "beside"
    older, newer = job.commits()[-2:]
    job.append_plain(with_marker(newer, marker_of(older)))
    job.place = job.root / "place"
    with pytest.raises(CheckpointCorruptError, match="is not authenticated"):
        await job.restored()


def _date(days: int) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp(days * 86_400, tz=UTC).date().isoformat()
