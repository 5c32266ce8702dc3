"""A blob client some of whose calls take effect and answer an error, as the session's plan says."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from typing_extensions import override

from chaos.spark import arming
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.errors import RetriableError

T = TypeVar("T")


class AnswerLosingManager(WrappedBlobStoreManager):
    """Passes calls on, and forgets some of the answers."""

    def __init__(self, inner: BlobStoreManager) -> None:
        super().__init__(inner)
        self._draw = random.Random()  # noqa: S311 - which process calls first is not drawn either

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        result = await call()
        if arming.is_answer_lost(self._draw.random()):
            raise RetriableError(f"answer lost on purpose: operation={operation} blob={subject}")
        return result
