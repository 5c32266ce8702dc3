"""From a name as somebody wrote it to the key that it means, or to the error that says why not."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NoReturn

from statekeep.config.backend_keys import BACKEND_SETTING
from statekeep.config.key import BACKEND_HOLE, STORE_HOLE, Key
from statekeep.config.keys import KEYS, RESERVED_STORE_NAMES, UNSUPPORTED
from statekeep.config.redact import is_secret_name, may_be_secret
from statekeep.errors import ConfigError

_STORE_KEY: Final = re.compile(r"stores\.(?P<store>[^.\s/]+)\.(?P<rest>.+)")
_KINDS: Final = ("blob.store", "kafka", "hdfs.store")
"""What stands before the settings of all backends of a kind of ours."""
_BACKEND_KEY: Final = re.compile(r"backends\.[^.\s]+\.\S+")


@dataclass(frozen=True, slots=True)
class FoundKey:
    """What a written name stands for."""

    key: Key[object]
    name: str
    """The one name under which the setting is kept, holes filled, whatever alias was written."""
    store: str | None = None
    """The store that the setting belongs to alone."""

    @property
    def is_secret(self) -> bool:
        """Whether the value must never be shown."""
        if self.key is not BACKEND_SETTING:
            return self.key.is_secret
        _, _, setting = self.name.split(".", 2)
        ours = [_BY_NAME[name].key for kind in _KINDS if (name := f"{kind}.{setting}") in _BY_NAME]
        if ours:
            return is_secret_name(setting) or any(key.is_secret for key in ours)
        return may_be_secret(setting)


def find_key(written: str, source: str) -> FoundKey:
    """Return what a written name stands for.

    Raises:
        ConfigError: It is unknown, or known and not supported; the text names the key, its
            source, and the nearest known name or the reason.
    """
    if written in _BY_NAME:
        return _BY_NAME[written]
    if _BACKEND_KEY.fullmatch(written) is not None:
        return FoundKey(BACKEND_SETTING, written)
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


def _by_name(keys: Iterable[Key[object]]) -> dict[str, FoundKey]:
    found: dict[str, FoundKey] = {}
    for key in keys:
        if STORE_HOLE not in key.name and BACKEND_HOLE not in key.name:
            found |= {name: FoundKey(key, key.name) for name in (key.name, *key.aliases)}
        if key.job_name is not None:
            entry = FoundKey(key, key.job_name)
            found |= dict.fromkeys((key.job_name, *key.job_aliases), entry)
    return found


_BY_NAME: Final = _by_name(KEYS)
_BY_PATTERN: Final = {
    name: key for key in KEYS if STORE_HOLE in key.name for name in (key.name, *key.aliases)
}
