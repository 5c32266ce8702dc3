"""One client for all managers of a container and backend: building one costs more than a request."""

import asyncio
from collections.abc import Callable

from statekeep.backends.blob.managers.object_client import ObjectClient
from statekeep.backends.blob.managers.object_requests import Requests


class SharedClient:
    """A client that is built by the first who asks for it and closed by the last who leaves.

    Those who come after that get a new one. Used by one event loop.
    """

    def __init__(self, make: Callable[[], ObjectClient]) -> None:
        """Build nothing yet.

        Args:
            make: Called on an executor thread; may raise ConfigError.
        """
        self._make = make
        self._client: ObjectClient | None = None
        self._member_count = 0
        self._changing = asyncio.Lock()

    def join(self) -> None:
        """Count one more who may ask; `leave` is due."""
        self._member_count += 1

    async def get(self, requests: Requests) -> ObjectClient:
        """Return the client."""
        async with self._changing:
            if self._client is None:
                self._client = await requests.local(self._make)
            return self._client

    async def leave(self, requests: Requests) -> None:
        """Count one fewer; the last one closes the client."""
        async with self._changing:
            self._member_count -= 1
            if self._member_count == 0 and self._client is not None:
                client, self._client = self._client, None
                await requests.local(client.close)
