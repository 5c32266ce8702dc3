"""The blob client of a schedule whose places have bad days, or lose answers."""

import random
from collections.abc import Mapping

from typing_extensions import override

from chaos.fault_profile import FaultProfile, FaultyManager
from chaos.spark import arming
from chaos.spark.lost_answers import AnswerLosingManager
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.testing.storage import bare_manager

MANAGER = "chaos.spark.fault_profile:make_manager"
"""What ``backends.<name>.manager.factory`` is set to."""

_SLOWEST_S = 0.4


class PlannedProfile(FaultyManager):
    """The fault profile that the harness has written down, in any process."""

    def __init__(self, inner: BlobStoreManager, uri: str) -> None:
        draw = random.Random()  # noqa: S311 - which process calls first is not drawn either
        super().__init__(inner, draw, slowest_s=_SLOWEST_S)
        self._uri = uri

    @override
    def profile_now(self) -> FaultProfile:
        return FaultProfile(arming.profile_of(self._uri) or FaultProfile.FAIR)


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """Build the client of a place."""
    uri = settings["uri"]
    return PlannedProfile(AnswerLosingManager(bare_manager(uri, {}, executor)), uri)
