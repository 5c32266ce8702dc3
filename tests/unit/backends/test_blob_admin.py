"""What the start finds out about the place of a blob backend, and what it leaves there."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from statekeep.backends.blob_store import MAX_DOCUMENT_BYTES, BlobMetadata, BlobStoreManager
from statekeep.backends.storage.admin import StorageAdmin
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import BlobNotFoundError, ConfigError, RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import Fault, FaultPlan, faulty_blob_factory


class LackingManager(MemoryBlobStoreManager):
    """A store that does everything but one thing."""

    lacks = ""

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        if self.lacks == "write":
            raise ConfigError("access denied")
        if self.lacks == "create" and if_absent:
            if_absent = False
        if self.lacks == "create by its own account" and if_absent:
            raise ConfigError("no atomic create on this kind of filesystem")
        return await super().put(name, content, metadata, if_absent=if_absent)

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        if self.lacks == "read":
            raise BlobNotFoundError(blob_id)
        return (
            b"other" if self.lacks == "bytes" else await super().get(blob_id, max_bytes=max_bytes)
        )

    @override
    async def delete(self, blob_id: str) -> None:
        if self.lacks != "delete":
            await super().delete(blob_id)

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        return [] if self.lacks == "list" else await super().list(prefix)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LackingManager]:
    yield LackingManager(str(tmp_path), SerialExecutor())
    forget_root(str(tmp_path))


async def nothing_missing() -> None:
    pass


def admin_of(manager: BlobStoreManager) -> StorageAdmin:
    return StorageAdmin(
        BackendName("b"), manager, new_uid=lambda: "uid", check_more=nothing_missing
    )


@pytest.mark.asyncio
async def test_sound_storage_is_left_as_it_was(
    manager: LackingManager, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await admin_of(manager).validate_resources()
    assert await manager.list("") == []
    assert caplog.records == []


@pytest.mark.parametrize(
    ("lacks", "told"),
    [
        ("write", "access denied"),
        ("read", "does not return"),
        ("bytes", "different data"),
        ("list", "does not list"),
        ("delete", "does not delete"),
    ],
)
@pytest.mark.asyncio
async def test_what_a_storage_lacks_is_reported(
    manager: LackingManager, lacks: str, told: str
) -> None:
    manager.lacks = lacks
    with pytest.raises(ConfigError, match=told):
        await admin_of(manager).validate_resources()


@pytest.mark.parametrize("lacks", ["create", "create by its own account"])
@pytest.mark.asyncio
async def test_storage_without_atomic_create_holds_backups_only(
    manager: LackingManager, caplog: pytest.LogCaptureFixture, lacks: str
) -> None:
    manager.lacks = lacks
    with caplog.at_level(logging.WARNING):
        await admin_of(manager).validate_resources()
    assert [record.getMessage() for record in caplog.records] == [
        "the storage has no atomic create, so it can hold backups but not the job log: backend=b"
    ]
    assert await manager.list("") == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("timeout", "longest_s"), [({}, 60), ({"start.timeout.ms": "5s"}, 5)], ids=["default", "set"]
)
async def test_a_start_tries_storage_that_does_not_answer_for_a_bounded_time(
    tmp_path: Path, timeout: dict[str, str], longest_s: int
) -> None:
    plan, clock = FaultPlan([Fault("*", times=-1)]), FakeClock()
    factory = faulty_blob_factory(str(tmp_path), plan, timeout)
    admin = factory.admin(SerialExecutor(), clock)
    began_ns = clock.monotonic_ns()
    with pytest.raises(RetriableError, match="does not answer: backend=blob") as caught:
        await admin.create_resources()
    assert (clock.monotonic_ns() - began_ns) / 1e9 <= longest_s
    assert len(plan.calls) > 2
    assert "start.timeout.ms" in caught.value.hints[0]
    forget_root(str(tmp_path))
