"""One task on the HDFS backend, on a directory."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from statekeep.backends.base import CommitContext
from statekeep.backends.hdfs.backup import HdfsBackupManager
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, Marker
from statekeep.stores.delta import DeltaReader, DeltaWriter
from statekeep.stores.version import SealedVersion
from statekeep.testing.backend_harness import STORE, Commit
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.key_value_harness import KeyValueHarness


class Task(KeyValueHarness):
    """One task, whose snapshots are waited for."""

    def __init__(
        self, place: Path, local: Path, clock: FakeClock | None = None, /, **settings: str
    ) -> None:
        settings = {"uri": f"file://{place}", "min.deltas.for.snapshot": "3", **settings}
        factory = HdfsBackendFactory(BackendName("hdfs"), settings)
        super().__init__(factory, SerialExecutor(), clock or FakeClock(), local)
        self.place = place
        self.counted: list[int] = []

    @override
    def open_attempt(self, version: SealedVersion, *, epoch: int = 1) -> CommitContext:
        context = super().open_attempt(version, epoch=epoch)
        counting = replace(context, count_bytes=self.counted.append)
        self._contexts[context.checkpoint_id] = counting
        return counting

    async def commit_next(self, **changes: bytes) -> Commit:
        self.content = {**getattr(self, "content", {}), **changes}
        commit = await self.commit(self.seal(self.content))
        await self.finish_snapshots()
        return commit

    async def finish_snapshots(self) -> None:
        manager = self.manager
        assert isinstance(manager, HdfsBackupManager)
        await manager.finish_snapshots()

    def files(self, pattern: str = "*") -> list[Path]:
        found = [path for path in self.place.rglob(pattern) if path.is_file()]
        return sorted(found, key=lambda path: int(path.name.partition("_")[0]))

    def file(self, commit: Commit, kind: str) -> Path:
        (found,) = self.place.rglob(f"{upload_of(commit)}.{kind}")
        return found


def upload_of(commit: Commit) -> str:
    return commit.markers[STORE].rpartition("/")[2].partition(".")[0]


def with_old_marker(commit: Commit) -> CheckpointV2:
    """Return the checkpoint of a commit with a marker of version 1."""
    ((backend, markers),) = commit.checkpoint.state_markers.items()
    old = {store: Marker(marker.rpartition(".")[0]) for store, marker in markers.items()}
    return replace(commit.checkpoint, state_markers={backend: old})


def rewrite(path: Path, left_out: int) -> None:
    """Write a file anew without some of its records, as an attacker does who knows the format."""
    with path.open("rb") as file:
        reader = DeltaReader(file, where=str(path))
        header, records = reader.header, list(reader)
    with path.open("wb") as file:
        writer = DeltaWriter(file, header)
        writer.write_entries(records[left_out:])
        writer.finish()


def damage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])


def upgrade(path: Path) -> None:
    """Make a file one of the next format, as far as its header goes, which is whole."""
    data = path.read_bytes()
    magic, version, size = struct.unpack_from("<8sII", data)
    header = struct.pack("<8sII", magic, version + 1, size) + data[16 : 16 + size]
    path.write_bytes(header + struct.pack("<I", zlib.crc32(header)) + data[20 + size :])
