"""The weather of places during one life of a process of the plain level."""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from typing_extensions import override

from chaos.weather import Weather, WeatheredManager
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.backends.blob_store import BlobStoreManager

MANAGER: Final = "chaos.plain.weather:make_manager"
"""What ``backends.<name>.manager.factory`` is set to."""

_SLOWEST_S: Final = 0.01

WEATHER: Final[Mapping[str, Sequence[Weather]]] = MappingProxyType(
    {
        "blob": (Weather.SLOW, Weather.FLAPPING, Weather.OUTAGE, Weather.LOSSY),
        "blob-s3": (Weather.LOSSY, Weather.THROTTLED),
    }
)
"""By kind of place; others, and S3 beside this, have the bad days of their servers."""


class LifelongWeather(WeatheredManager):
    """One weather for all of a life, but for an outage, which begins at some call and passes."""

    def __init__(self, inner: BlobStoreManager, weather: Weather, seed: str) -> None:
        draw = random.Random(seed)  # noqa: S311 - the same weather each time
        super().__init__(inner, draw, slowest_s=_SLOWEST_S)
        self._weather = weather
        self._outage_from = draw.randrange(1, 60)
        self._outage_to = self._outage_from + draw.randrange(10, 80)

    @override
    def weather_now(self) -> Weather:
        is_early_or_late = not self._outage_from <= self._calls < self._outage_to
        if self._weather is Weather.OUTAGE and is_early_or_late:
            return Weather.FAIR
        return self._weather


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
    return inner if weather is Weather.FAIR else LifelongWeather(inner, weather, uri)
