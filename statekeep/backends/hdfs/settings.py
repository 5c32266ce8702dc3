"""The settings of an HDFS backend: when snapshots are made, and the storage as of any blob backend."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from statekeep.config.backend_section import BackendSection
from statekeep.config.hdfs_settings import HDFS_PREFIX, HdfsStoreSettings
from statekeep.config.key import keys_of
from statekeep.errors import ConfigError

_TIMES_MIN_DELTAS: Final = 4
_MIN_DELTAS_BEFORE_WAIT: Final = 64

DEFAULTS_PREFIX: Final = HDFS_PREFIX


@dataclass(frozen=True, slots=True)
class HdfsSettings(HdfsStoreSettings):
    """One HDFS backend, checked."""

    storage: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """What a blob backend reads: ``uri``, ``retry.policy.*`` and so on. May hold secrets."""

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
            ConfigError: A setting is of the wrong type, or there is no location.
        """
        section = BackendSection("hdfs", backend, DEFAULTS_PREFIX, settings)
        keys = keys_of(HdfsStoreSettings)
        if "uri" not in settings:
            raise ConfigError(
                f"hdfs backend has no location: backend={backend}",
                key=f"backends.{backend}.uri",
                hint=f"set {keys['uri'].name}, such as hdfs://namenode:8020/backup/path",
            )
        own = {section.short(key) for name, key in keys.items() if name != "uri"}
        storage = {name: value for name, value in settings.items() if name not in own}
        return section.fill(cls, storage=storage)
