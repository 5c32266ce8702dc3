"""The settings of an HDFS backend: when snapshots are made, and the place as of any blob backend."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from statekeep.config import hdfs_keys
from statekeep.config.key import Key
from statekeep.errors import ConfigError

T = TypeVar("T")

_TIMES_MIN_DELTAS: Final = 4
_MIN_DELTAS_BEFORE_WAIT: Final = 64

DEFAULTS_PREFIX: Final = "hdfs.store"
"""What stands before these names in the settings of all HDFS backends."""

_OWN: Final[tuple[Key[object], ...]] = (
    hdfs_keys.MIN_DELTAS_FOR_SNAPSHOT,
    hdfs_keys.MAX_DELTA_BYTES,
    hdfs_keys.COMPRESSION,
)


@dataclass(frozen=True, slots=True)
class HdfsSettings:
    """One HDFS backend, checked."""

    min_deltas_for_snapshot: int
    """A snapshot is due when a lineage has so many deltas since the last one."""
    max_delta_bytes: int
    """It is also due when those deltas have so many bytes before compression."""
    compression: str
    """Name of a codec of `statekeep.stores.block_codec`."""
    place: Mapping[str, str] = field(repr=False)
    """What is left: the settings of a blob backend, ``uri``, ``retry.policy.*`` and so on. May hold
    secrets."""

    @property
    def deltas_before_wait(self) -> int:
        """Each time that a lineage has become so much longer, a commit waits for a snapshot."""
        return max(_TIMES_MIN_DELTAS * self.min_deltas_for_snapshot, _MIN_DELTAS_BEFORE_WAIT)

    @classmethod
    def parse(cls, backend: str, settings: Mapping[str, str]) -> Self:
        """Read a backend's section of the configuration.

        Args:
            backend: Name of the backend, for errors.
            settings: Its settings, without ``backends.<name>.`` or ``hdfs.store.``.

        Raises:
            ConfigError: A setting is of the wrong type, or there is no place.
        """
        own = {_short(key) for key in _OWN}
        place = {name: value for name, value in settings.items() if name not in own}
        if "uri" not in place:
            raise ConfigError(
                f"hdfs backend has no place: backend={backend}",
                key=f"backends.{backend}.uri",
                hint=f"set {hdfs_keys.URI.name}, such as hdfs://namenode:8020/backup/path",
            )
        return cls(
            min_deltas_for_snapshot=_read(backend, settings, hdfs_keys.MIN_DELTAS_FOR_SNAPSHOT),
            max_delta_bytes=_read(backend, settings, hdfs_keys.MAX_DELTA_BYTES),
            compression=_read(backend, settings, hdfs_keys.COMPRESSION),
            place=place,
        )


def _read(backend: str, settings: Mapping[str, str], key: Key[T]) -> T:
    name = _short(key)
    text = settings.get(name)
    if text is None:
        return key.default
    try:
        return key.type.parse(text)
    except ValueError as exc:
        raise ConfigError(
            f"{name} must be {key.type.requirement}: backend={backend} value={text!r}",
            key=f"backends.{backend}.{name}",
        ) from exc


def _short(key: Key[object]) -> str:
    return key.name.removeprefix(f"{DEFAULTS_PREFIX}.")
