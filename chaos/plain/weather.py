"""Blob stores with a bad day: slow, flapping, down for a while, or losing answers."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.errors import RetriableError

T = TypeVar("T")

MANAGER: Final = "chaos.plain.weather:make_manager"
"""What ``backends.<name>.manager.factory`` is set to."""

LOST_ANSWERS: Final = 0.15
"""Of all, in lossy weather."""


class Weather(StrEnum):
    """How a place behaves during one life of a process."""

    FAIR = "fair"
    SLOW = "slow"
    """Every call takes some milliseconds longer."""
    FLAPPING = "flapping"
    """Some calls go well, the next ones fail, and so on."""
    OUTAGE = "outage"
    """From some call on, many in a row fail; retries are used up."""
    LOSSY = "lossy"
    """Some calls take effect and answer an error: a put that landed."""
    THROTTLED = "throttled"
    """Some requests are put off: the server asks for fewer."""


WEATHER: Final[Mapping[str, Sequence[Weather]]] = MappingProxyType(
    {
        "blob": (Weather.SLOW, Weather.FLAPPING, Weather.OUTAGE, Weather.LOSSY),
        "blob-s3": (Weather.LOSSY, Weather.THROTTLED),
    }
)
"""By kind of place; others, and S3 beside this, have the bad days of their servers."""


class WeatheredManager(WrappedBlobStoreManager):
    """Passes calls on as the weather allows; what it does is drawn from its seed."""

    def __init__(self, inner: BlobStoreManager, weather: Weather, seed: str) -> None:
        super().__init__(inner)
        self._weather = weather
        self._draw = random.Random(seed)  # noqa: S311 - the same weather each time
        self._calls = 0
        self._period = self._draw.randrange(2, 9)
        self._outage_from = self._draw.randrange(1, 60)
        self._outage_to = self._outage_from + self._draw.randrange(10, 80)

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        self._calls += 1
        match self._weather:
            case Weather.SLOW:
                await asyncio.sleep(self._draw.random() / 100)
            case Weather.FLAPPING if self._calls // self._period % 2:
                raise RetriableError(f"flapping on purpose: operation={operation}")
            case Weather.OUTAGE if self._outage_from <= self._calls < self._outage_to:
                raise RetriableError(f"down on purpose: operation={operation}")
            case _:
                pass
        result = await call()
        if self._weather is Weather.LOSSY and self._draw.random() < LOST_ANSWERS:
            raise RetriableError(f"answer lost on purpose: operation={operation} blob={subject}")
        return result


_forecast: dict[str, Weather] = {}
"""By URI, for this process: a manager is built from the settings of its backend alone."""


def set_forecast(forecast: Mapping[str, Weather]) -> None:
    """Say how the places behave in this process from now on; FAIR where nothing is said."""
    _forecast.clear()
    _forecast.update(forecast)


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """Build the client of a place in its weather."""
    uri = settings["uri"]
    inner = FsspecBlobStoreManager(uri, {}, executor)
    weather = _forecast.get(uri, Weather.FAIR)
    return inner if weather is Weather.FAIR else WeatheredManager(inner, weather, uri)
