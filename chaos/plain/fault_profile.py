"""The fault profiles of places during one life of a process of the plain level."""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from typing_extensions import override

from chaos.fault_profile import FaultProfile, FaultyManager
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.testing.storage import bare_manager

MANAGER: Final = "chaos.plain.fault_profile:make_manager"
"""What ``backends.<name>.manager.factory`` is set to."""

_SLOWEST_S: Final = 0.01

PROFILES: Final[Mapping[str, Sequence[FaultProfile]]] = MappingProxyType(
    {
        "blob": (FaultProfile.SLOW, FaultProfile.FLAPPING, FaultProfile.OUTAGE, FaultProfile.LOSSY),
        "blob-s3": (FaultProfile.LOSSY, FaultProfile.THROTTLED),
    }
)
"""By kind of place; others, and S3 beside this, have the bad days of their servers."""


class LifelongProfile(FaultyManager):
    """One fault profile for a whole life; an outage begins at some call and ends."""

    def __init__(self, inner: BlobStoreManager, profile: FaultProfile, seed: str) -> None:
        draw = random.Random(seed)  # noqa: S311 - the same faults each time
        super().__init__(inner, draw, slowest_s=_SLOWEST_S)
        self._profile = profile
        self._outage_from = draw.randrange(1, 60)
        self._outage_to = self._outage_from + draw.randrange(10, 80)

    @override
    def profile_now(self) -> FaultProfile:
        is_early_or_late = not self._outage_from <= self._calls < self._outage_to
        if self._profile is FaultProfile.OUTAGE and is_early_or_late:
            return FaultProfile.FAIR
        return self._profile


_forecast: dict[str, FaultProfile] = {}
"""By URI, for this process: a manager is built from the settings of its backend alone."""


def set_forecast(forecast: Mapping[str, FaultProfile]) -> None:
    """Say how the places behave in this process from now on; FAIR where nothing is said."""
    _forecast.clear()
    _forecast.update(forecast)


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """Build the client of a place with its fault profile."""
    uri = settings["uri"]
    inner = bare_manager(uri, {}, executor)
    profile = _forecast.get(uri, FaultProfile.FAIR)
    return inner if profile is FaultProfile.FAIR else LifelongProfile(inner, profile, uri)
