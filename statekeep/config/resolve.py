"""Which of several settings holds: a store's, the job's, a changelog's, a backend's, a default.

Source: Samza 1.8 ``StorageConfig``. Different on purpose: the restore list of the whole job does
not reach stores that are explicitly not backed up, and a list that could never restore what is
backed up is refused.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from statekeep.config.blob_settings import BLOB_PREFIX
from statekeep.config.kafka_settings import KAFKA_PREFIX
from statekeep.config.key import Key, keys_of
from statekeep.config.keys import KEYS
from statekeep.config.settings import Setting
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import ConfigError

CHANGELOG_BACKEND = "kafka"
"""The backend of a store that has a changelog and lists no backend."""

Names: TypeAlias = tuple[str, ...]

_STORE: Final = keys_of(StoreSettings)
BACKUP_FACTORIES: Final[Key[Names]] = _STORE["backup_factories"]
RESTORE_FACTORIES: Final[Key[Names]] = _STORE["restore_factories"]
CHANGELOG: Final = _STORE["changelog"]
_OPTIONAL_FACTORIES: Final[Key[Names]] = _STORE["optional_factories"]


def find(settings: Mapping[str, Setting], key: Key[Any], store: str = "") -> Setting | None:
    """Return the setting that holds: given before default, then the store's before the job's."""
    names = [key.of(store)] if key.job_name is None else [key.of(store), key.job_name]
    present = [settings[name] for name in names if name in settings]
    return min(present, key=lambda setting: setting.is_default, default=None)


def store_names(settings: Mapping[str, Setting]) -> Names:
    """Return the stores that have a setting of their own, sorted."""
    return tuple(sorted({s.store for s in settings.values() if s.store is not None}))


def backup_factories(settings: Mapping[str, Setting], store: str) -> Names:
    """Return the backends of a store: store key, job key, changelog, default, none."""
    found = find(settings, BACKUP_FACTORIES, store)
    has_changelog = CHANGELOG.of(store) in settings
    if has_changelog and (found is None or found.is_default):
        return (CHANGELOG_BACKEND,)
    return _names(found, BACKUP_FACTORIES)


def all_backup_factories(settings: Mapping[str, Setting], first: str = "") -> Names:
    """Return every backend that some store is backed up to, in the order of first mention.

    The list of the whole job counts even if every named store has its own: stores that no setting
    names may follow it.

    Args:
        settings: Of the job.
        first: The store whose backends stand before those of other stores.
    """
    names = dict.fromkeys(_names(find(settings, BACKUP_FACTORIES), BACKUP_FACTORIES))
    for store in sorted(store_names(settings), key=lambda store: (store != first, store)):
        names |= dict.fromkeys(backup_factories(settings, store))
    return tuple(names)


def restore_factories(settings: Mapping[str, Setting], store: str) -> Names:
    """Return the backends that a restore of the store tries, in order.

    Raises:
        ConfigError: One is not a backup backend of any store, none is of this store, or each is
            optional for it.
    """
    backups = backup_factories(settings, store)
    found = find(settings, RESTORE_FACTORIES, store)
    if found is None or (not backups and found.store is None):
        return backups
    restores = found.parse_key(RESTORE_FACTORIES)
    known = all_backup_factories(settings)
    unknown = [name for name in restores if name not in known]
    if unknown:
        raise ConfigError(
            f"restore backend is not a backup backend of any store: store={store} "
            f"backend={unknown[0]} backup_backends={','.join(known)} "
            f"key={found.name} source={found.source}",
            key=found.name,
            hint=f"add {unknown[0]} to {BACKUP_FACTORIES.of(store)}, or take it out",
        )
    if backups and restores and not set(backups) & set(restores):
        raise ConfigError(
            f"store could never be restored from its own backups: store={store} "
            f"backup_backends={','.join(backups)} restore_backends={','.join(restores)} "
            f"key={found.name} source={found.source}",
            key=found.name,
            hint=f"list one of the backup backends in {RESTORE_FACTORIES.of(store)}",
        )
    own = set(restores) & set(backups)
    if own and own <= set(optional_factories(settings, store)):
        raise ConfigError(
            f"store could be restored from optional backends only, and a commit may lack those: "
            f"store={store} restore_backends={','.join(restores)} "
            f"key={found.name} source={found.source}",
            key=found.name,
            hint=f"list a required backend after them in {RESTORE_FACTORIES.of(store)}",
        )
    return restores


def is_begun_empty(settings: Mapping[str, Setting], store: str) -> bool:
    """Whether the settings say explicitly that the store is restored from nowhere."""
    found = find(settings, RESTORE_FACTORIES, store)
    if found is None or found.is_default:
        return False
    return not found.parse_key(RESTORE_FACTORIES)


def optional_factories(settings: Mapping[str, Setting], store: str) -> Names:
    """Return the backup backends of the store whose failure does not fail a commit.

    Raises:
        ConfigError: The store's own list names a backend that it is not backed up to, or no
            backend is left that a commit requires.
    """
    backups = backup_factories(settings, store)
    found = find(settings, _OPTIONAL_FACTORIES, store)
    if found is None:
        return ()
    listed = found.parse_key(_OPTIONAL_FACTORIES)
    strangers = [name for name in listed if name not in backups]
    if strangers and found.store is not None:
        raise ConfigError(
            f"optional backend is not a backup backend of the store: store={store} "
            f"backend={strangers[0]} backup_backends={','.join(backups)} "
            f"key={found.name} source={found.source}",
            key=found.name,
        )
    optional = tuple(name for name in listed if name in backups)
    if backups and set(backups) <= set(optional):
        raise ConfigError(
            f"every backup backend of the store is optional, so a commit would require none: "
            f"store={store} backup_backends={','.join(backups)} "
            f"key={found.name} source={found.source}",
            key=found.name,
        )
    return optional


def all_optional_factories(settings: Mapping[str, Setting]) -> Names:
    """Return every backend that some store lists as optional; errors as of `optional_factories`."""
    names = dict.fromkeys(optional_factories(settings, ""))
    for store in store_names(settings):
        names |= dict.fromkeys(optional_factories(settings, store))
    return tuple(names)


def backend_section(
    settings: Mapping[str, Setting], backend: str, defaults_prefix: str
) -> dict[str, str]:
    """Return the settings of a backend as `Config.backend_settings` promises them."""
    section: dict[str, str] = {}
    prefixes = [f"{prefix}." for prefix in (defaults_prefix, f"backends.{backend}") if prefix]
    for is_default in (True, False):
        for prefix in prefixes:
            for setting in settings.values():
                if setting.is_default is is_default and setting.name.startswith(prefix):
                    rest = setting.name.removeprefix(prefix)
                    key = _KEY_BY_NAME.get(f"{defaults_prefix}.{rest}")
                    section[rest] = setting.value if key is None else _plain(setting, key)
    section.pop("factory", None)
    if defaults_prefix == KAFKA_PREFIX:
        section |= _of_stores(settings, _CHANGELOG_KEYS, "default")
    if defaults_prefix == BLOB_PREFIX:
        section |= _of_stores(settings, _BLOB_KEYS)
    return section


def _of_stores(
    settings: Mapping[str, Setting], keys: Iterable[Key[Any]], *others: str
) -> dict[str, str]:
    """Return what stores say of a kind of backend: ``stores.<store>.changelog``, ``.blob.*``."""
    names = {
        name: key
        for key in keys
        for store in (*store_names(settings), *others)
        if (name := key.of(store)) in settings
    }
    return {name: _plain(settings[name], key) for name, key in names.items()}


def _plain(setting: Setting, key: Key[Any]) -> str:
    """Return the value as text without units, as a backend takes it."""
    return key.type.write(setting.parse_key(key))


_CHANGELOG_KEYS: Final = [key for field, key in _STORE.items() if field.startswith("changelog")]
_BLOB_KEYS: Final = [key for field, key in _STORE.items() if field.startswith("blob_")]
_KEY_BY_NAME: Final = {key.name: key for key in KEYS}


def _names(found: Setting | None, key: Key[Names]) -> Names:
    return () if found is None else found.parse_key(key)
