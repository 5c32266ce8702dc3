"""Finds out what an object store refuses of what a backup sends beyond one small blob."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from statekeep.backends.blob.managers.object_client import ObjectClient, ObjectStamps
from statekeep.backends.blob.managers.object_requests import Requests
from statekeep.backends.blob.managers.shared_client import SharedClient
from statekeep.errors import BlobExistsError, BlobNotFoundError, ConfigError, StateBackupError

_DATA: Final = b"statekeep probe\n"
_BARE: Final = ObjectStamps({})

MakeClient = Callable[[], ObjectClient]


class ObjectProbe:
    """Makes the requests of a start that only object stores need; leaves nothing behind."""

    def __init__(
        self,
        client: SharedClient,
        requests: Requests,
        *,
        plainer: Mapping[str, MakeClient],
        uncommitted_tags: Mapping[str, str],
    ) -> None:
        """Take what is needed; no I/O.

        Args:
            client: Of the container and backend.
            requests: Makes every request.
            plainer: By the setting that each leaves out: what builds clients that send less.
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
        for setting, make in self._plainer.items():
            client = await self._requests.local(make)
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
        client = await self._shared_client.get(self._requests)
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
        with suppress(BlobExistsError):  # nobody else has the name: a try without an answer landed
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
            # Noted on the thread: the caller may be cancelled before it hears of it.
            begun.append(client.begin_parts(name, stamps))

        try:
            await run("put", name, 0, begin)
            parts: list[str] = []
            for number, size in enumerate(sizes):
                async with self._requests.shared.buffers.hold(size):
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
        with suppress(StateBackupError):  # it may not be permitted; what has failed is told
            found = await self._requests.local(client.unfinished, name)
            uploads |= {each.upload for each in found}
        for upload in uploads:
            with suppress(StateBackupError):
                await self._requests.local(client.abort_parts, name, upload)

    async def _delete(self, client: ObjectClient, name: str) -> None:
        await self._requests.run("delete", name, 0, client.delete, name)
