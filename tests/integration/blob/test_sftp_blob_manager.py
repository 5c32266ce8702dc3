"""Blobs on an SFTP server, through fsspec and paramiko."""

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path

import paramiko
import pytest
from servers.sftp import SftpServer
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.manager import StorageManager
from statekeep.backends.storage.sftp import SftpClient
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.errors import BlobNotFoundError, ConfigError, RetriableError
from statekeep.testing.blob_store_tests import BackupPlaceTests
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.storage import bare_manager

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

METADATA = BlobMetadata(task=None, store_name=None, payload_name="x")


def make_factory(server: SftpServer, prefix: str, **settings: str) -> BlobBackendFactory:
    uri = f"{server.endpoint}/{prefix}"
    options = {
        "storage.options.key_filename": str(server.key_file),
        "storage.options.known_hosts": str(server.known_hosts),
    }
    return BlobBackendFactory(BackendName("blob"), {"uri": uri} | options | settings)


def make_manager(
    server: SftpServer, prefix: str, executor: BlockingExecutor, **settings: str
) -> BlobStoreManager:
    return make_factory(server, prefix, **settings).blob_store_manager(executor, SystemClock())


@pytest.fixture
def prefix() -> str:
    return f"backups/{uuid.uuid4().hex}"


class TestSftpManager(BackupPlaceTests):
    """SFTP has no create that is whole or not at all; the next test holds that this is told."""

    @pytest.fixture(autouse=True)
    def server(self, sftp: SftpServer, prefix: str) -> None:
        self.sftp, self.prefix = sftp, prefix

    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        return make_manager(self.sftp, self.prefix, executor)

    @override
    def read_back(self, place: Path, blob_id: str) -> bytes:
        return (self.sftp.root / self.prefix / blob_id).read_bytes()


@pytest.mark.asyncio
async def test_the_start_finds_a_backend_for_backups_but_not_for_the_job_log(
    sftp: SftpServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    factory = make_factory(sftp, prefix)
    admin = factory.admin(SerialExecutor(), SystemClock())
    await admin.create_resources()
    await admin.validate_resources()
    await admin.close()
    assert "it can hold backups but not the job log" in caplog.text
    log = factory.job_log("job", SerialExecutor(), SystemClock())
    with pytest.raises(ConfigError, match="no atomic create"):
        await log.probe()
    await log.close()


@pytest.mark.asyncio
async def test_puts_beside_each_other_make_their_directories_and_leave_no_temporary_file(
    sftp: SftpServer, prefix: str
) -> None:
    executor = BoundedExecutor(8, "sftp")
    manager = make_manager(sftp, prefix, executor)
    await manager.init()
    names = [f"job/task {number % 4}/1-{number}/blob" for number in range(32)]
    await asyncio.gather(*(manager.put(name, name.encode(), METADATA) for name in names))
    assert list(await manager.list("job/")) == sorted(names)
    found = await asyncio.gather(*(manager.get(name) for name in names))
    assert found == [name.encode() for name in names]
    assert list((sftp.root / prefix).rglob(".tmp-*")) == []
    await manager.close()
    await executor.close()


@pytest.mark.asyncio
async def test_what_a_broken_put_left_is_no_blob_and_goes_with_its_attempt(
    sftp: SftpServer, prefix: str
) -> None:
    manager = make_manager(sftp, prefix, SerialExecutor())
    await manager.init()
    await manager.put("a/1", b"1", METADATA)
    (sftp.root / prefix / "a/.tmp-0-2").write_bytes(b"half")
    assert await manager.list("a/") == ["a/1"]
    await manager.remove_unfinished("a/", lambda name: name != "a/2")
    assert (sftp.root / prefix / "a/.tmp-0-2").exists()
    await manager.remove_unfinished("a/", lambda name: name == "a/2")
    assert [path.name for path in (sftp.root / prefix / "a").iterdir()] == ["1"]
    await manager.close()


@pytest.mark.asyncio
async def test_a_connection_that_breaks_is_followed_by_another(
    sftp: SftpServer, prefix: str
) -> None:
    options = {"key_filename": str(sftp.key_file), "known_hosts": str(sftp.known_hosts)}
    manager = bare_manager(f"{sftp.endpoint}/{prefix}", options, SerialExecutor())
    await manager.init()
    assert isinstance(manager, StorageManager)
    assert isinstance(manager._client, SftpClient)
    for connection in manager._client._idle:
        connection.fs.client.get_transport().sock.close()
    with suppress(RetriableError):  # unless it is known by then that the connection is closed
        await manager.put("a", b"1", METADATA)
    await manager.put("a", b"1", METADATA)
    with pytest.raises(BlobNotFoundError):
        await manager.get("b")
    assert await manager.get("a") == b"1"
    await manager.close()


@pytest.mark.asyncio
async def test_a_key_that_the_server_does_not_know_is_an_error_at_once(
    sftp: SftpServer, prefix: str, tmp_path: Path
) -> None:
    paramiko.RSAKey.generate(2048).write_private_key_file(str(tmp_path / "key"))
    settings = {
        "storage.options.key_filename": str(tmp_path / "key"),
        "retry.policy.max.retries": "0",
    }
    manager = make_manager(sftp, prefix, SerialExecutor(), **settings)
    with pytest.raises(ConfigError, match="access denied"):
        await manager.init()
    await manager.close()
