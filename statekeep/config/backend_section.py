"""Reads what the configuration says of one backend, for the factory that it is given to."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

from statekeep.config.key import Key, keys_of
from statekeep.config.redact import is_secret_name, redact
from statekeep.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BackendSection:
    """The settings of one backend, as `Config.backend_settings` gives them."""

    kind: str
    """What kind of backend it is, for people."""
    backend: str
    """Its name."""
    prefix: str
    """What is left out of the names of settings for all backends of the kind: ``blob.store``."""
    settings: Mapping[str, str] = field(repr=False)

    def fill(self, section: type[T], **others: Any) -> T:  # noqa: ANN401 - as the fields
        """Return a dataclass with its settings, and other fields as given; errors as of `read`."""
        return section(**{name: self.read(key) for name, key in keys_of(section).items()} | others)

    def read(self, key: Key[T], store: str = "") -> T:
        """Return a setting, or its default.

        Raises:
            ConfigError: It is not of its type.
        """
        name = self.short(key, store)
        text = self.settings.get(name)
        if text is None:
            return key.default
        try:
            return key.type.parse(text)
        except ValueError as exc:
            shown = redact(text, is_secret=key.is_secret or is_secret_name(name))
            raise ConfigError(
                f"{name} must be {key.type.requirement}: backend={self.backend} value={shown!r}",
                key=f"backends.{self.backend}.{name}",
            ) from exc

    def below(self, prefix: str) -> dict[str, str]:
        """Return the settings whose names begin with ``prefix``, without it."""
        return {
            name.removeprefix(prefix): value
            for name, value in self.settings.items()
            if name.startswith(prefix)
        }

    def short(self, key: Key[Any], store: str = "") -> str:
        """Return the name of a setting in the section."""
        return key.of(store).removeprefix(f"{self.prefix}.")

    def refuse_unknown(
        self, sections: Iterable[type], options: str, others: Collection[str] = ()
    ) -> None:
        """Make sure that every setting of the section is known.

        Args:
            sections: The dataclasses that the backend reads.
            options: What the names of settings begin with that it hands on to a library.
            others: What other names begin with that it reads.

        Raises:
            ConfigError: One is not; the text names the nearest one.
        """
        known = [self.short(key) for section in sections for key in keys_of(section).values()]
        for name in self.settings:
            if name in known or name.startswith((options, *others)):
                continue
            nearest = get_close_matches(name, [*known, options], n=1, cutoff=0)[0]
            raise ConfigError(
                f"unknown setting of a {self.kind} backend: "
                f"backend={self.backend} key={name} nearest={nearest}",
                key=f"backends.{self.backend}.{name}",
                hint=f"known are {', '.join(known)} and {options}*",
            )
