"""From the name of a backend, as the configuration and markers use it, to its factory."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final, Protocol

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.dotted_path import is_dotted_path, load_object
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import ConfigError
from statekeep.extras import missing_package

ENTRY_POINT_GROUP: Final = "statekeep.state_backends"
"""Where a package announces the short name of its factory."""

_OWN_FACTORIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "memory": "statekeep.backends.memory:MemoryBackendFactory",
        "blob": "statekeep.backends.blob.factory:BlobBackendFactory",
        "hdfs": "statekeep.backends.hdfs.factory:HdfsBackendFactory",
        "kafka": "statekeep.backends.kafka.factory:KafkaBackendFactory",
    }
)
"""Also in our own entry points; here so that they are found without installed metadata."""


class BackendConfig(Protocol):
    """What the registry asks of the configuration (`statekeep.config`)."""

    def backend_names(self, first: str = "") -> Iterable[str]:
        """Return the names of all backends that the job uses, those of the store ``first`` early."""
        ...

    def backend_factory(self, name: str) -> str:
        """Return the short name or dotted path of the factory behind a backend's name."""
        ...

    def backend_settings(self, name: str, defaults_prefix: str) -> Mapping[str, str]:
        """Return a backend's own settings over the defaults of its kind, without prefixes."""
        ...


class BackendRegistry:
    """Builds the factories that a configuration names: one instance per backend name.

    A name is a short name (``blob``), a named instance (``backends.<name>.factory = blob``), or the
    dotted path of a factory. Nothing is imported before it is asked for.
    """

    def __init__(
        self,
        config: BackendConfig,
        *,
        found: Iterable[EntryPoint] | None = None,
        is_checked: bool = False,
    ) -> None:
        """Take the configuration.

        Args:
            config: Names, factories and settings of the job's backends.
            found: The entry points of `ENTRY_POINT_GROUP`; None: those of the installed packages.
            is_checked: The driver has looked for claims of our own names: those of this host are
                read only for other names, as that goes through every archive on the path of an
                executor.

        Raises:
            ConfigError: Two packages claim one short name.
        """
        self._config = config
        self._found = found
        self._factories: dict[str, StateBackendFactory] = {}
        if not is_checked:
            _ = self._paths

    @cached_property
    def _paths(self) -> Mapping[str, str]:
        return _merge(entry_points(group=ENTRY_POINT_GROUP) if self._found is None else self._found)

    def factory(self, name: str) -> StateBackendFactory:
        """Return the factory of a backend; the same instance each time.

        Raises:
            ConfigError: The name is unknown, what it names is no factory, a client library is not
                installed, or a setting of the backend is wrong.
        """
        if name not in self._factories:
            factory_class = self.factory_class(name)
            settings = self._config.backend_settings(name, factory_class.defaults_prefix)
            self._factories[name] = factory_class(BackendName(name), settings)
        return self._factories[name]

    def factories(self, first: str = "") -> Mapping[BackendName, StateBackendFactory]:
        """Return the factories of all backends, in the order of `Config.backend_names`; errors as of `factory`."""
        return {BackendName(name): self.factory(name) for name in self._config.backend_names(first)}

    def factory_class(self, name: str) -> type[StateBackendFactory]:
        """Return the class behind a backend's name; errors as of `factory`."""
        written = self._config.backend_factory(name)
        key = f"backends.{name}.factory"
        path = _OWN_FACTORIES.get(written) or self._paths.get(written)
        if path is not None:
            loaded = self._load(path, key)
        elif is_dotted_path(written):
            loaded = load_object(written, key=key)
        else:
            raise self._unknown(name, written)
        if not (isinstance(loaded, type) and issubclass(loaded, StateBackendFactory)):
            raise ConfigError(f"not a StateBackendFactory: {key}={written}", key=key)
        return loaded

    def _load(self, path: str, key: str) -> object:
        try:
            return load_object(path, key=key)
        except ModuleNotFoundError as exc:
            missing = missing_package(exc, key=key)
            if missing is None:
                raise
            raise missing from exc

    def _unknown(self, name: str, written: str) -> ConfigError:
        known = sorted({*self._paths, *self._config.backend_names()} - {name, written})
        nearest = get_close_matches(written, known, n=1, cutoff=0.6)
        near = f" nearest={nearest[0]}" if nearest else ""
        return ConfigError(
            f"unknown backend: name={name} factory={written}{near} known={','.join(known)}",
            key=f"backends.{name}.factory",
            hint=f"say what kind it is by backends.{name}.factory; a factory of your own is named by "
            "entry point or as package.module:Class",
        )


def _merge(installed: Iterable[EntryPoint]) -> Mapping[str, str]:
    """Return ``{short name: dotted path}`` of our own and of all installed factories."""
    paths = dict(_OWN_FACTORIES)
    for entry_point in installed:
        other = paths.setdefault(entry_point.name, entry_point.value)
        if other != entry_point.value:
            raise ConfigError(
                f"two packages claim one backend name: name={entry_point.name} "
                f"factory={other} other_factory={entry_point.value}",
                key=ENTRY_POINT_GROUP,
                hint="uninstall one, or name the other by its dotted path",
            )
    return paths
