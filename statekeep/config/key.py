"""What is known about one setting."""

import os
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from statekeep.config.values import ValueType

T_co = TypeVar("T_co", covariant=True)

STORE_HOLE = "<store>"
BACKEND_HOLE = "<backend>"


@dataclass(frozen=True, slots=True)
class Key(Generic[T_co]):
    """One setting: its name, type and default, and why the default is what it is."""

    name: str
    """As it is written, with `STORE_HOLE` or `BACKEND_HOLE` where a name goes."""
    type: ValueType[T_co]
    default: T_co
    """The value where nothing is set; see ``default_text`` for one that is worked out later."""
    meaning: str
    """One sentence: what the setting does."""
    reason: str
    """Why the default is what it is, or why there is none."""
    aliases: tuple[str, ...] = ()
    """Other spellings, with the same holes as ``name``."""
    job_name: str | None = None
    """For a key with `STORE_HOLE`: the key that gives the value of all stores without their own."""
    job_aliases: tuple[str, ...] = ()
    """Other spellings of ``job_name``."""
    default_text: str | None = None
    """The default in words, where its value depends on the machine or on other settings."""
    variable: str | None = None
    """The environment variable that has the default, where it is set."""
    is_secret: bool = False
    """The value is never shown."""

    def of(self, hole: str) -> str:
        """Return the name for one store or backend."""
        return self.name.replace(STORE_HOLE, hole).replace(BACKEND_HOLE, hole)

    @property
    def default_of_variable(self) -> str | None:
        """What ``variable`` holds; None where there is no such variable, or it is empty."""
        return None if self.variable is None else os.environ.get(self.variable, "").strip() or None

    @property
    def shown_default(self) -> str:
        """The default as a person reads it, and would write it unless it is in words."""
        if self.default_text is not None:
            return self.default_text
        default: object = self.default
        if isinstance(default, tuple):
            return ",".join(str(part) for part in cast("tuple[object, ...]", default))
        return str(default).lower() if isinstance(default, bool) else str(default)
