"""What holds in the end, and where it was said."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from statekeep.config import resolve
from statekeep.config.key import Key, keys_of
from statekeep.config.keys import KEYS
from statekeep.config.settings import Setting
from statekeep.config.store_settings import StoreSettings

_DEFAULT = "default"


class ExplainedSetting(NamedTuple):
    """One effective setting, for a person to read."""

    key: str
    """Name, holes filled."""
    value: str
    """Value or default; a secret is hidden."""
    source: str
    """Where it was given, or ``default``; the environment variable that has the default, if one."""


def explain(settings: Mapping[str, Setting]) -> list[ExplainedSetting]:
    """Return every effective setting and where it comes from, sorted by key, secrets hidden."""
    rows = {s.name: ExplainedSetting(s.name, s.shown, s.source) for s in settings.values()}
    for key in KEYS:
        if not key.has_hole:
            rows.setdefault(key.name, _default(key))
    for store in resolve.store_names(settings):
        for key in keys_of(StoreSettings).values():
            rows.setdefault(key.of(store), _inherited(settings, key, store))
    return sorted(rows.values())


def _default(key: Key[Any]) -> ExplainedSetting:
    """Return the row of a setting that was not given."""
    found = key.default_of_variable
    if found is not None:
        return ExplainedSetting(key.name, found, f"environment {key.variable}")
    return ExplainedSetting(key.name, key.shown_default, _DEFAULT)


def _inherited(settings: Mapping[str, Setting], key: Key[Any], store: str) -> ExplainedSetting:
    """Return the row of a setting that the store itself does not have."""
    backups = ",".join(resolve.backup_factories(settings, store))
    found = resolve.find(settings, key, store)
    changelog = settings.get(resolve.CHANGELOG.of(store))
    is_backup = key is resolve.BACKUP_FACTORIES
    if is_backup and changelog is not None and (found is None or found.is_default):
        return ExplainedSetting(key.of(store), backups, f"{changelog.name}, {changelog.source}")
    if found is not None:
        return ExplainedSetting(key.of(store), found.shown, f"{found.name}, {found.source}")
    if is_backup or key is resolve.RESTORE_FACTORIES:
        return ExplainedSetting(key.of(store), backups, _DEFAULT)
    return ExplainedSetting(key.of(store), key.shown_default, _DEFAULT)
