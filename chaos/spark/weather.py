"""The blob client of a schedule whose places have bad days, or lose answers."""

import random
from collections.abc import Mapping

from typing_extensions import override

from chaos.spark import arming
from chaos.spark.lost_answers import AnswerLosingManager
from chaos.weather import Weather, WeatheredManager
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.backends.blob_store import BlobStoreManager

MANAGER = "chaos.spark.weather:make_manager"
"""What ``backends.<name>.manager.factory`` is set to."""

_SLOWEST_S = 0.4


class PlannedWeather(WeatheredManager):
    """The weather that the harness has written down, in whatever process."""

    def __init__(self, inner: BlobStoreManager, uri: str) -> None:
        draw = random.Random()  # noqa: S311 - which process calls first is not drawn either
        super().__init__(inner, draw, slowest_s=_SLOWEST_S)
        self._uri = uri

    @override
    def weather_now(self) -> Weather:
        return Weather(arming.weather_of(self._uri) or Weather.FAIR)


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """Build the client of a place."""
    uri = settings["uri"]
    return PlannedWeather(AnswerLosingManager(FsspecBlobStoreManager(uri, {}, executor)), uri)
