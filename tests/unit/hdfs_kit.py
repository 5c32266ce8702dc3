"""The hooks of the conformance kit for the HDFS backend, by a place's files as plain bytes."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from statekeep.backends.base import StateBackendFactory
from statekeep.checkpoint.checkpoints import Marker
from statekeep.errors import CheckpointCorruptError, VersionDamagedError
from statekeep.stores.delta import DeltaReader, DeltaWriter
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.backend_hooks import FIRST, SECOND, THIRD
from statekeep.testing.backend_tests import StateBackendTests
from statekeep.testing.sealed_files import StoreContent


class HdfsKit(StateBackendTests):
    """Fill in `make_factory` (without compression), `stored_files` and `replace`."""

    def stored_files(self, factory: StateBackendFactory) -> dict[str, bytes]:
        """Return every file below the backend's root, by its path there."""
        raise NotImplementedError

    def replace(self, factory: StateBackendFactory, name: str, data: bytes | None) -> None:
        """Write a file anew; None: delete it."""
        raise NotImplementedError

    @override
    def read_back(self, factory: StateBackendFactory, marker: Marker) -> StoreContent:
        files = self.stored_files(factory)
        content: dict[str, bytes] = {}
        for name in chain(files, marker):
            for key, value in records_of(files[name]):
                if value is None:
                    del content[key.decode()]
                else:
                    content[key.decode()] = value
        return content

    @override
    def stored(self, factory: StateBackendFactory) -> set[str]:
        return set(self.stored_files(factory))

    @override
    def reached(self, factory: StateBackendFactory, marker: Marker) -> set[str]:
        return set(chain(self.stored_files(factory), marker))

    @override
    def damage(self, factory: StateBackendFactory, name: str) -> None:
        data = self.stored_files(factory)[name]
        self.replace(factory, name, data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])

    @override
    def remove(self, factory: StateBackendFactory, name: str) -> None:
        for path in self.stored_files(factory):
            if Path(path).name.startswith(Path(name).name):
                self.replace(factory, path, None)

    @pytest.mark.asyncio
    async def test_a_file_that_was_rewritten_with_right_checksums_is_not_restored(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        commits = [await task.commit(task.seal(content)) for content in (FIRST, SECOND, THIRD)]
        marker = commits[-1].markers[STORE]
        for name in sorted(self.reached(factory, marker)):
            data = self.stored_files(factory)[name]
            self.replace(factory, name, rewritten(data))
            with pytest.raises(CheckpointCorruptError, match="differs from its digest"):
                await task.restore(commits[-1].checkpoint)
            self.replace(factory, name, data)
        assert (await task.restore(commits[-1].checkpoint)).content == {STORE: THIRD}

    @override
    @pytest.mark.asyncio
    async def test_progress_adds_up_to_what_was_announced(self, task: BackendHarness) -> None:
        commit = await task.commit(task.seal(FIRST))
        restored = await task.restore(commit.checkpoint)
        assert restored.total_bytes == restored.fetched_bytes > sum(map(len, FIRST.values()))

    @override
    @pytest.mark.asyncio
    async def test_a_damaged_local_version_does_not_become_a_backup(
        self, task: BackendHarness
    ) -> None:
        version = task.seal(FIRST)
        image = next(version.store_directory(STORE).iterdir())
        image.write_bytes(image.read_bytes()[:-9])
        with pytest.raises(VersionDamagedError):
            await task.commit(version)


def rewritten(data: bytes) -> bytes:
    """Return a file without its first record, with right checksums."""
    reader = DeltaReader(io.BytesIO(data), where="kit")
    header, (_, *left) = reader.header, list(reader)
    target = io.BytesIO()
    writer = DeltaWriter(target, header)
    writer.write_entries(left)
    writer.finish()
    return target.getvalue()


def chain(files: dict[str, bytes], marker: Marker) -> list[str]:
    """Return the files of a marker, oldest first: by their headers, without the code under test."""
    found = {Path(name).name: name for name in files}
    names: list[str] = []
    upload, _, kind = Path(marker.partition(";")[0]).name.partition(".")
    while kind == "delta":
        names.insert(0, found[f"{upload}.delta"])
        upload, *older = header_of(files[names[0]])["lineage"]
        kind = "delta" if older else "snapshot"
    return [found[f"{upload}.snapshot"], *names]


def header_of(data: bytes) -> dict[str, Any]:
    """Return the header of a file."""
    (size,) = struct.unpack_from("<I", data, 12)
    header: dict[str, Any] = json.loads(data[16 : 16 + size])
    return header


def records_of(data: bytes) -> list[tuple[bytes, bytes | None]]:
    """Take a file that is not compressed apart, by `docs/reference/formats.md`."""
    offset = 20 + struct.unpack_from("<I", data, 12)[0]
    records: list[tuple[bytes, bytes | None]] = []
    while (stored := struct.unpack_from("<I", data, offset)[0]) != 0xFFFFFFFF:
        offset += 17
        end = offset + stored
        while offset < end:
            (key_size,) = struct.unpack_from("<I", data, offset)
            key = data[offset + 4 : offset + 4 + key_size]
            offset += 4 + key_size
            (size,) = struct.unpack_from("<i", data, offset)
            value = None if size < 0 else data[offset + 4 : offset + 4 + size]
            records.append((key, value))
            offset += 4 + max(size, 0)
    return records
