"""Setting up and checking the place of a blob backend."""

from collections.abc import Callable

from typing_extensions import override

from statekeep.backends.base import BlobMetadata, BlobStoreManager, StateBackendAdmin
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import BlobNotFoundError, ConfigError

_PROBE = b"statekeep probe\n"


class BlobAdmin(StateBackendAdmin):
    """Proves by doing: what a backup needs is tried with one small blob."""

    def __init__(
        self, backend: BackendName, manager: BlobStoreManager, *, new_uid: Callable[[], str]
    ) -> None:
        self._backend = backend
        self._manager = manager
        self._new_uid = new_uid

    @override
    async def create_resources(self) -> None:
        await self._manager.init()

    @override
    async def validate_resources(self) -> None:
        await self._manager.init()
        prefix = f"probes/{self._new_uid()}/"
        metadata = BlobMetadata(task=None, store_name=None, payload_name="probe")
        blob_id = await self._manager.put(f"{prefix}probe", _PROBE, metadata)
        try:
            await self._check_readable(blob_id, prefix)
        finally:
            await self._manager.delete(blob_id)
        if blob_id in await self._manager.list(prefix):
            raise self._lacking("does not delete")

    async def _check_readable(self, blob_id: str, prefix: str) -> None:
        try:
            data = await self._manager.get(blob_id)
        except BlobNotFoundError as exc:
            raise self._lacking("does not show what was just put") from exc
        if data != _PROBE:
            raise self._lacking("gives back other bytes than were put")
        if blob_id not in await self._manager.list(prefix):
            raise self._lacking("does not list what was just put")

    def _lacking(self, what: str) -> ConfigError:
        return ConfigError(
            f"the place of a blob backend {what}: backend={self._backend}",
            key=f"backends.{self._backend}.uri",
        )

    @override
    async def close(self) -> None:
        await self._manager.close()
