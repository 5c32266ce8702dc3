"""Setting up and checking the storage of a backend."""

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from typing_extensions import override

from statekeep.backends.base import StateBackendAdmin
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.client import (
    ObjectClient,
    ObjectStamps,
    SharedClient,
    StorageClient,
)
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.requests import Requests
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    StateBackupError,
)

logger = logging.getLogger(__name__)

_DATA: Final = b"statekeep probe\n"
_BARE: Final = ObjectStamps({})


class ObjectProbe:
    """Makes the requests of a start that only object stores need; leaves nothing behind."""

    def __init__(
        self,
        client: SharedClient,
        requests: Requests,
        *,
        plainer: Mapping[str, Location],
        uncommitted_tags: Mapping[str, str],
    ) -> None:
        """Take what is needed; no I/O.

        Args:
            client: Of the container and backend.
            requests: Makes every request.
            plainer: By the setting that each leaves out: locations whose clients send less.
            uncommitted_tags: Of blobs whose upload is not complete; empty: none.
        """
        self._shared_client = client
        self._requests = requests
        self._plainer = plainer
        self._uncommitted_tags = uncommitted_tags
        self._is_closed = False
        client.join()

    async def refused_setting(self, name: str) -> str | None:
        """Say without which setting a small blob is taken, after it was refused with all of them.

        Args:
            name: Of a blob that may be put.

        Returns:
            The setting, without its prefix; None: whatever is left out, it is refused.
        """
        for setting, location in self._plainer.items():
            client = _objects(await self._requests.local(location.open_client))
            try:
                with suppress(ConfigError):
                    await self._put(client, name, _BARE)
                    return setting
            finally:
                await self._requests.local(client.close)
        return None

    async def check(self, name: str) -> None:
        """Try what files of a store need: an upload in parts, and tags until a commit.

        Args:
            name: Of a blob that may be put.

        Raises:
            ConfigError: The store refuses it; the message says what.
        """
        client = _objects(await self._shared_client.get(self._requests))
        await self._try("an upload in parts", None, lambda: self._put_parts(client, name, _BARE))
        if self._uncommitted_tags:
            tags = ObjectStamps({}, self._uncommitted_tags)
            setting = "uncommitted.tags"
            await self._try("tags", setting, lambda: self._put(client, name, tags))

            async def create() -> None:
                await self._put(client, name, tags, if_absent=True)
                await self._put_parts(client, name, tags, if_absent=True)

            await self._try("to create a blob only where none is", setting, create)

    async def close(self) -> None:
        """Leave the client. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            await self._shared_client.leave(self._requests)

    async def _try(
        self, what: str, setting: str | None, attempt: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await attempt()
        except ConfigError as exc:
            hint = "has it been permitted?"
            if setting is not None:
                hint = f"{hint} It is not needed without {setting}"
            msg = f"the object store refuses {what}, though not a small blob: reason={exc}"
            raise ConfigError(msg, key=setting, hint=hint) from exc

    async def _put(
        self, client: ObjectClient, name: str, stamps: ObjectStamps, *, if_absent: bool = False
    ) -> None:
        run = self._requests.run
        with suppress(
            BlobExistsError
        ):  # the name is unique: an earlier try landed without an answer
            await run("put", name, len(_DATA), client.put, name, _DATA, stamps, if_absent=if_absent)
        try:
            if stamps.tags:
                await run("remove_ttl", name, 0, client.remove_tags, name)
        finally:
            await self._delete(client, name)

    async def _put_parts(
        self, client: ObjectClient, name: str, stamps: ObjectStamps, *, if_absent: bool = False
    ) -> None:
        """Put a blob of two parts, as small as the store lets it be."""
        run = self._requests.run_to_end
        sizes = (client.part_limits.min_bytes, 1)
        begun: list[str] = []

        def begin() -> None:
            # Recorded on the thread: the caller may be cancelled before it hears of it.
            begun.append(client.begin_parts(name, stamps))

        try:
            await run("put", name, 0, begin)
            parts: list[str] = []
            for number, size in enumerate(sizes):
                async with self._requests.buffers.hold(size):
                    put = partial(client.put_part, name, begun[0], number, bytes(size))
                    parts.append(await run("put", name, size, put))
            complete = partial(client.complete_parts, name, begun[0], parts, stamps)
            with suppress(BlobExistsError, BlobNotFoundError):  # as above; it is read next
                await run("put", name, 0, complete, if_absent=if_absent)
        finally:
            await self._drop_uploads(client, name, begun)
        try:
            found = await run("get", name, 1, client.read, name, 0, 1)
        finally:
            await self._delete(client, name)
        if found.object_bytes != sum(sizes):
            msg = f"it made {found.object_bytes} bytes of {sum(sizes)}"
            raise ConfigError(msg)

    async def _drop_uploads(self, client: ObjectClient, name: str, begun: Sequence[str]) -> None:
        """Drop what is left of uploads, of one too whose beginning got no answer."""
        uploads = set(begun)
        with suppress(StateBackupError):  # it may not be permitted; the failure itself is raised
            found = await self._requests.local(client.unfinished, name)
            uploads |= {each.upload for each in found}
        for upload in uploads:
            with suppress(StateBackupError):
                await self._requests.local(client.abort, name, upload)

    async def _delete(self, client: ObjectClient, name: str) -> None:
        await self._requests.run("delete", name, 0, client.delete, name)


class StorageAdmin(StateBackendAdmin):
    """Proves by doing: what a backup needs is tried with a small blob, and one in two parts."""

    def __init__(
        self,
        backend: BackendName,
        manager: BlobStoreManager,
        *,
        new_uid: Callable[[], str],
        check_more: Callable[[], Awaitable[None]],
        object_probe: ObjectProbe | None = None,
    ) -> None:
        """Take what is needed; no I/O.

        Args:
            backend: For errors.
            manager: Closed by `close`.
            new_uid: Draws lower-case hex that is never drawn again.
            check_more: See `StorageBackendFactory.check_more`.
            object_probe: Of an object store; closed by `close`.
        """
        self._backend = backend
        self._check_more = check_more
        self._manager = manager
        self._new_uid = new_uid
        self._object_probe = object_probe

    @override
    async def create_resources(self) -> None:
        with self._explained_silence():
            await self._manager.init()

    @override
    async def validate_resources(self) -> None:
        with self._explained_silence():
            await self._validate()

    async def _validate(self) -> None:
        await self._check_more()
        await self._manager.init()
        prefix = f"probes/{self._new_uid()}/"
        metadata = BlobMetadata(task=None, store_name=None, payload_name="probe")
        blob_id = await self._put_first(f"{prefix}probe", metadata)
        try:
            await self._check_readable(blob_id, prefix)
            if not await self._creates_atomically(f"{prefix}probe", metadata):
                logger.warning(
                    "the storage has no atomic create, so it can hold backups but not the job log: "
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
            return await self._manager.put(name, _DATA, metadata)
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
                hint=f"a blob without it is accepted; what was refused: {refusal}",
            ) from refusal

    async def _creates_atomically(self, name: str, metadata: BlobMetadata) -> bool:
        """Return whether a create of a name that is taken is refused."""
        try:
            await self._manager.put(name, _DATA, metadata, if_absent=True)
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
        if data != _DATA:
            raise self._lacking("returned different data than was written")
        if blob_id not in await self._manager.list(prefix):
            raise self._lacking("does not list a blob that was just written")

    @contextmanager
    def _explained_silence(self) -> Generator[None]:
        """Say which storage does not answer, and what to look at."""
        try:
            yield
        except RetriableError as exc:
            error = RetriableError(
                f"the storage of a blob backend does not answer: backend={self._backend} "
                f"reason={exc.message}"
            )
            for hint in exc.hints:  # which limit ran out
                error.add_note(f"hint: {hint}")
            error.add_note(
                f"hint: is backends.{self._backend}.uri right, and its endpoint within reach of this "
                "machine?"
            )
            raise error from exc

    def _lacking(self, what: str) -> ConfigError:
        return ConfigError(
            f"the storage of a blob backend {what}: backend={self._backend}",
            key=f"backends.{self._backend}.uri",
        )

    @override
    async def close(self) -> None:
        if self._object_probe is not None:
            await self._object_probe.close()
        await self._manager.close()


def _objects(client: StorageClient) -> ObjectClient:
    if not isinstance(client, ObjectClient):
        msg = f"no object store: kind={type(client).__name__}"
        raise TypeError(msg)
    return client
