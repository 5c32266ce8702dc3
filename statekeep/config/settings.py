"""The settings that were given, each with its source."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from typing_extensions import override

from statekeep.config.key import Key
from statekeep.config.redact import redact
from statekeep.config.values import ValueType
from statekeep.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that was given, checked."""

    name: str
    """The name of the key, holes filled; never an alias."""
    value: str
    """As written, without surrounding blanks. May be a secret: see ``shown``."""
    source: str
    """Where it came from, as a person would look for it: ``job.properties:12``."""
    store: str | None = None
    """The store that it belongs to alone."""
    is_secret: bool = False
    """The value is never shown."""
    is_default: bool = False
    """It gives way to every other value of the key, and to a store's changelog."""

    @override
    def __repr__(self) -> str:
        return f"Setting({self.name}={self.shown!r}, source={self.source!r})"

    @property
    def holds_secret(self) -> bool:
        """Whether the value, or a part of it such as the password of a URL, must not be shown."""
        return self.shown != self.value

    @property
    def shown(self) -> str:
        """The value as logs and people may see it."""
        return redact(self.value, is_secret=self.is_secret)

    def parse(self, value_type: ValueType[T]) -> T:
        """Return the typed value.

        Raises:
            ConfigError: The text is not of the type.
        """
        try:
            return value_type.parse(self.value)
        except ValueError as exc:
            raise ConfigError(
                f"{self.name} must be {value_type.requirement}: "
                f"value={self.shown!r} source={self.source}",
                key=self.name,
            ) from exc

    def parse_key(self, key: Key[T]) -> T:
        """Return the value typed as ``key`` says; errors as of `parse`."""
        return self.parse(key.type)


def collect(settings: Iterable[Setting]) -> Mapping[str, Setting]:
    """Return the settings of one source by name.

    Raises:
        ConfigError: One is given twice, perhaps once by an alias, with different values.
    """
    by_name: dict[str, Setting] = {}
    for setting in settings:
        other = by_name.setdefault(setting.name, setting)
        if other.value != setting.value:
            raise ConfigError(
                f"setting is given twice with different values: key={setting.name} "
                f"source={other.source} other_source={setting.source}",
                key=setting.name,
                hint="an alias counts as the same setting",
            )
    return by_name


def overlay(lower: Mapping[str, Setting], upper: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return both; ``upper`` wins, but a default never replaces a value that was given."""
    merged = dict(lower)
    for name, setting in upper.items():
        if name not in merged or not setting.is_default or merged[name].is_default:
            merged[name] = setting
    return merged
