"""Setting up and checking the place of a blob backend."""

import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from typing_extensions import override

from statekeep.backends.base import StateBackendAdmin
from statekeep.backends.blob.object_probe import ObjectProbe
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import BlobExistsError, BlobNotFoundError, ConfigError, RetriableError

logger = logging.getLogger(__name__)

_PROBE = b"statekeep probe\n"


class BlobAdmin(StateBackendAdmin):
    """Proves by doing: what a backup needs is tried with a small blob, and one in two parts."""

    def __init__(
        self,
        backend: BackendName,
        manager: BlobStoreManager,
        *,
        new_uid: Callable[[], str],
        check_codec: Callable[[], Awaitable[None]],
        object_probe: ObjectProbe | None = None,
    ) -> None:
        """Take what is needed; no I/O.

        Args:
            backend: For errors.
            manager: Closed by `close`.
            new_uid: Draws lower-case hex that is never drawn again.
            check_codec: See `Codec.check`.
            object_probe: Of an object store; closed by `close`.
        """
        self._backend = backend
        self._check_codec = check_codec
        self._manager = manager
        self._new_uid = new_uid
        self._object_probe = object_probe

    @override
    async def create_resources(self) -> None:
        with self._silence_told():
            await self._manager.init()

    @override
    async def validate_resources(self) -> None:
        with self._silence_told():
            await self._validate()

    async def _validate(self) -> None:
        await self._check_codec()
        await self._manager.init()
        prefix = f"probes/{self._new_uid()}/"
        metadata = BlobMetadata(task=None, store_name=None, payload_name="probe")
        blob_id = await self._put_first(f"{prefix}probe", metadata)
        try:
            await self._check_readable(blob_id, prefix)
            if not await self._creates_atomically(f"{prefix}probe", metadata):
                logger.warning(
                    "the place has no atomic create, so it can hold backups but not the job log: "
                    "backend=%s",
                    self._backend,
                )
        finally:
            await self._manager.delete(blob_id)
        if blob_id in await self._manager.list(prefix):
            raise self._lacking("does not delete")
        if self._object_probe is not None:
            await self._object_probe.check(f"{prefix}parts")

    async def _put_first(self, name: str, metadata: BlobMetadata) -> str:
        try:
            return await self._manager.put(name, _PROBE, metadata)
        except ConfigError as exc:
            await self._name_refused(name, exc)
            exc.add_note("hint: writing is denied")
            raise

    async def _name_refused(self, name: str, refusal: ConfigError) -> None:
        """Raise what a store refuses of all that goes with a blob, if it takes one without that."""
        probe = self._object_probe
        setting = None if probe is None else await probe.refused_setting(name)
        if setting is not None:
            raise ConfigError(
                f"the object store refuses what a setting puts into every request: "
                f"backend={self._backend} setting={setting}",
                key=f"backends.{self._backend}.{setting}",
                hint=f"a blob without it is taken; what was refused: {refusal}",
            ) from refusal

    async def _creates_atomically(self, name: str, metadata: BlobMetadata) -> bool:
        """Return whether a create of a name that is taken is refused."""
        try:
            await self._manager.put(name, _PROBE, metadata, if_absent=True)
        except BlobExistsError:
            return True
        except ConfigError:  # a filesystem that cannot, and says so
            return False
        return False

    async def _check_readable(self, blob_id: str, prefix: str) -> None:
        try:
            data = await self._manager.get(blob_id)
        except BlobNotFoundError as exc:
            raise self._lacking("does not return a blob that was just written") from exc
        if data != _PROBE:
            raise self._lacking("returned different data than was written")
        if blob_id not in await self._manager.list(prefix):
            raise self._lacking("does not list a blob that was just written")

    @contextmanager
    def _silence_told(self) -> Generator[None]:
        """Say whose place does not answer, and what to look at."""
        try:
            yield
        except RetriableError as exc:
            error = RetriableError(
                f"the place of a blob backend does not answer: backend={self._backend} reason={exc}"
            )
            error.add_note(
                f"hint: is backends.{self._backend}.uri right, and its endpoint within reach of this "
                "machine? How long a start insists is set by start.timeout.ms"
            )
            raise error from exc

    def _lacking(self, what: str) -> ConfigError:
        return ConfigError(
            f"the place of a blob backend {what}: backend={self._backend}",
            key=f"backends.{self._backend}.uri",
        )

    @override
    async def close(self) -> None:
        if self._object_probe is not None:
            await self._object_probe.close()
        await self._manager.close()
