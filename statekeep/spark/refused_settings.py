"""Settings that the Spark runtime cannot follow: refused instead of having no effect."""

from collections.abc import Mapping
from typing import Final

from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.nearest import nearest_hint
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.variable_stores import stores_of_query
from statekeep.stores.task_directory import check_store_names

_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "job.id": ("1", "on Spark instances of a job differ by job.name alone"),
}
"""``{key: (the one value that does nothing, why any other is refused)}``"""
_PREFIXES: Final[Mapping[str, str]] = {"blob": "blob.store", "hdfs": "hdfs.store"}
"""Of the settings of our own backends in files: ``{factory: prefix}``."""


def check_settings(config: Config) -> None:
    """Check what the Spark runtime needs of the settings beyond each one's own type.

    Raises:
        ConfigError: One of them cannot be followed: it is named, with the reason.
    """
    config.check()
    _check_local_dir(config)
    _check_uris(config)
    for key, (harmless, reason) in _REFUSED.items():
        given = config.settings.get(key)
        if given is not None and given.value.replace(" ", "") != harmless:
            raise ConfigError(
                f"setting is not possible on Spark: {key}={given.shown} ({reason}) "
                f"source={given.source}",
                key=key,
                hint="leave it out",
            )
    stores = stores_of_query(config)
    check_store_names(stores)
    unknown = [store for store in config.store_names if store not in stores]
    if unknown:
        raise ConfigError(
            f"unknown store: store={unknown[0]} stores={','.join(stores)}",
            key=f"stores.{unknown[0]}",
            hint=nearest_hint(
                unknown[0],
                stores,
                f"state variables are kept in the store {STATE_STORE!r};"
                f" state.variables.<variable>.store={unknown[0]} puts one into this store",
            ),
        )
    for store in stores:
        if store != STATE_STORE:
            _check_backups(config, store)
        _check_restore(config, store)
    if not config.store(STATE_STORE).is_durable:
        raise ConfigError(
            f"the state would not be backed up: store={STATE_STORE}",
            key=f"stores.{STATE_STORE}.backup.factories",
            hint="name its backends, here or for all stores in stores.backup.factories: as soon as"
            " settings list a backend for any store, nothing is stored beside the checkpoint "
            "location by default",
        )


def _check_backups(config: Config, store: str) -> None:
    """Refuse a store without a backup unless the settings say so: its list may have been forgotten."""
    key = f"stores.{store}.backup.factories"
    if not config.store(store).is_durable and key not in config.settings:
        raise ConfigError(
            f"no setting says where the store is backed up: store={store}",
            key=key,
            hint="name its backends; with an empty value it is a cache, which begins empty at"
            " each start",
        )


def _check_restore(config: Config, store: str) -> None:
    """Refuse to back up a store that every restore would begin empty: it would lose what it has."""
    settings = config.store(store)
    if settings.is_begun_empty and settings.is_durable:
        raise ConfigError(
            f"a store that is backed up must be restored from somewhere: store={store}",
            key=f"stores.{store}.restore.factories",
            hint="leave it out, or name backends of the store; to give up its state, also set"
            f" stores.{store}.backup.factories to an empty value"
            if store != STATE_STORE
            else "leave it out, or name backends of the store; to begin anew, run `statekeep reset`",
        )


def _check_uris(config: Config) -> None:
    for backend in config.backend_names():
        prefix = _PREFIXES.get(config.backend_factory(backend))
        uri = "" if prefix is None else config.backend_settings(backend, prefix).get("uri", "")
        if uri and "://" not in uri and not uri.startswith(("/", "file:")):
            raise ConfigError(
                f"the location of a backend must be absolute: backend={backend} uri={uri}",
                key=f"backends.{backend}.uri",
                hint="executors and sidecars have working directories of their own",
            )


def _check_local_dir(config: Config) -> None:
    if not config.job.local_dir.is_absolute():
        raise ConfigError(
            f"the local directory must be absolute: path={config.job.local_dir}",
            key="job.logged.store.base.dir",
            hint="executors and sidecars have working directories of their own",
        )
