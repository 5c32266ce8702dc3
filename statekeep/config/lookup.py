"""From what the user wrote to the setting that it means, or to the error that says why not."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from os import PathLike, fspath
from typing import Any, Final, NoReturn, TypeAlias, cast

from statekeep.config.blob_settings import BLOB_PREFIX, NamedBackend
from statekeep.config.hdfs_settings import HDFS_PREFIX
from statekeep.config.kafka_settings import KAFKA_PREFIX
from statekeep.config.key import STORE_HOLE, Key, keys_of
from statekeep.config.keys import KEYS, UNSUPPORTED
from statekeep.config.redact import is_secret_name, may_be_secret
from statekeep.config.settings import Setting
from statekeep.config.store_settings import RESERVED_STORE_NAMES, StateVariableSettings
from statekeep.errors import ConfigError

_STORE_KEY: Final = re.compile(r"stores\.(?P<store>[^.\s/]+)\.(?P<rest>.+)")
_KINDS: Final = (BLOB_PREFIX, KAFKA_PREFIX, HDFS_PREFIX)
"""What stands before the settings of all backends of a kind of ours."""
_BACKEND_KEY: Final = re.compile(r"backends\.[^.\s]+\.\S+")
_BACKEND_SETTING: Final = keys_of(NamedBackend)["setting"]
_VARIABLE_KEY: Final = re.compile(r"state\.variables\.(?P<variable>.+)\.store")
_VARIABLE_STORE: Final = keys_of(StateVariableSettings)["store"]

WrittenValue: TypeAlias = str | int | float | date | PathLike[str] | Sequence[str] | Sequence[int]
"""What a program may give as a value; kept as the text that a file would hold."""


@dataclass(frozen=True, slots=True)
class FoundKey:
    """What a written name stands for."""

    key: Key[Any]
    name: str
    """The one name under which the setting is kept, holes filled, whatever alias was written."""
    store: str | None = None
    """The store that the setting belongs to alone."""

    @property
    def is_secret(self) -> bool:
        """Whether the value must never be shown."""
        if self.key is not _BACKEND_SETTING:
            return self.key.is_secret
        _, _, setting = self.name.split(".", 2)
        ours = [_BY_NAME[name].key for kind in _KINDS if (name := f"{kind}.{setting}") in _BY_NAME]
        if ours:
            return is_secret_name(setting) or any(key.is_secret for key in ours)
        return may_be_secret(setting)


def check_setting(
    written: str, value: WrittenValue, source: str, *, is_default: bool = False
) -> Setting:
    """Return a checked setting.

    Raises:
        ConfigError: The name is unknown or not supported, or the value is not of its type.
    """
    found = find_key(written, source)
    setting = Setting(
        found.name,
        _as_text(found.name, value, source),
        source,
        store=found.store,
        is_secret=found.is_secret,
        is_default=is_default,
    )
    setting.parse_key(found.key)
    return setting


def find_key(written: str, source: str) -> FoundKey:
    """Return what a written name stands for.

    Raises:
        ConfigError: It is unknown, or known and not supported; the text names the key, its
            source, and the nearest known name or the reason.
    """
    if written in _BY_NAME:
        return _BY_NAME[written]
    if _BACKEND_KEY.fullmatch(written) is not None:
        return FoundKey(_BACKEND_SETTING, written)
    if _VARIABLE_KEY.fullmatch(written) is not None:
        return FoundKey(_VARIABLE_STORE, written)
    match = _STORE_KEY.fullmatch(written)
    if match is None:
        _refuse(written, written, source)
    store, pattern = match["store"], f"stores.{STORE_HOLE}.{match['rest']}"
    if pattern not in _BY_PATTERN:
        _refuse(written, pattern, source, store)
    if store in RESERVED_STORE_NAMES:
        raise ConfigError(
            f"no store may have this name, and the setting has no value for all stores: "
            f"store={store} key={written} source={source}",
            key=written,
        )
    key = _BY_PATTERN[pattern]
    return FoundKey(key, key.of(store), store)


def _refuse(written: str, pattern: str, source: str, store: str = STORE_HOLE) -> NoReturn:
    if pattern in UNSUPPORTED:
        reason = UNSUPPORTED[pattern].replace(STORE_HOLE, store)
        raise ConfigError(
            f"setting is not supported: {reason}: key={written} source={source}",
            key=written,
            hint="remove it",
        )
    known = [*_BY_NAME, *(name.replace(STORE_HOLE, store) for name in _BY_PATTERN)]
    nearest = get_close_matches(written, known, n=1, cutoff=0.6)
    if not nearest:
        raise ConfigError(
            f"unknown setting: key={written} source={source}",
            key=written,
            hint="docs/reference/settings.md lists every setting",
        )
    raise ConfigError(
        f"unknown setting: key={written} nearest={nearest[0]} source={source}",
        key=written,
        hint=f"did you mean {nearest[0]}?",
    )


def _as_text(name: str, value: object, source: str) -> str:
    match value:
        case str():
            return value.strip()
        case bool():
            return "true" if value else "false"
        case int() | float() | date():
            return str(value)
        case PathLike():
            return str(fspath(cast("PathLike[str]", value)))
        case list() | tuple():
            parts = cast("Sequence[object]", value)
            return ",".join(_as_text(name, part, source) for part in parts)
        case _:
            raise ConfigError(
                f"{name} must be text, a number, true or false, a date, a path or a list: "
                f"type={type(value).__name__} source={source}",
                key=name,
            )


def _by_name(keys: Iterable[Key[Any]]) -> dict[str, FoundKey]:
    found: dict[str, FoundKey] = {}
    for key in keys:
        if not key.has_hole:
            found |= {name: FoundKey(key, key.name) for name in (key.name, *key.aliases)}
        if key.job_name is not None:
            entry = FoundKey(key, key.job_name)
            found |= dict.fromkeys((key.job_name, *key.job_aliases), entry)
    return found


_BY_NAME: Final = _by_name(KEYS)
_BY_PATTERN: Final = {
    name: key for key in KEYS if STORE_HOLE in key.name for name in (key.name, *key.aliases)
}
