"""One setting is one field of a dataclass: its name, type and default; its docstring says the rest.

A docstring is what the setting does and, between asterisks, why the default is what it is. The
parser, `statekeep config` and ``docs/reference/settings.md`` all come from these fields.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Generic, TypeVar, cast

from statekeep.config.values import ValueType

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

STORE_HOLE = "<store>"
BACKEND_HOLE = "<backend>"
VARIABLE_HOLE = "<variable>"
HOLES: Final = (STORE_HOLE, BACKEND_HOLE, VARIABLE_HOLE)
"""What stands in a key where a name goes; each key has one of them at most."""
_KEY: Final = "key"
"""Where the metadata of a field holds its `Key`."""


@dataclass(frozen=True, slots=True)
class Key(Generic[T_co]):
    """What is known about one setting."""

    name: str
    """As it is written, with one of `HOLES` where a name goes."""
    type: ValueType[T_co]
    default: T_co
    """The value where nothing is set; see ``default_text`` for one that is worked out later."""
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
        """Return the name for one store, backend or state variable."""
        name = self.name
        for mark in HOLES:
            name = name.replace(mark, hole)
        return name

    @property
    def has_hole(self) -> bool:
        """Whether a name is to be filled in."""
        return any(mark in self.name for mark in HOLES)

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


def setting(
    name: str,
    value_type: ValueType[T],
    default: T,
    *,
    for_all: bool = False,
    in_repr: bool = True,
    **more: Any,  # noqa: ANN401 - fields of `Key`
) -> T:
    """Declare a field that a setting fills, with its default.

    Args:
        name: Of the setting.
        value_type: How its values are written.
        default: Where nothing is set.
        for_all: Whether ``stores.default.*`` gives the value of all stores without their own.
        in_repr: Whether the field is shown by ``repr``; a secret never is.
        more: Further fields of `Key`.
    """
    if for_all:
        more["job_name"] = name.replace(STORE_HOLE, "default")
    key = Key(name, value_type, default, **more)
    return field(
        default_factory=lambda: default,  # a plain default must be hashable, and a mapping is not
        metadata={_KEY: key},
        repr=in_repr and not key.is_secret,
    )


def setting_without_default(
    name: str,
    value_type: ValueType[T],
    default_text: str,
    make: Callable[[], T] | None = None,
    **more: Any,  # noqa: ANN401 - fields of `Key`
) -> T:
    """Declare a field whose setting is required; or has a default that ``make`` works out."""
    metadata = {_KEY: Key(name, value_type, None, default_text=default_text, **more)}
    declared: T = (
        field(metadata=metadata) if make is None else field(metadata=metadata, default_factory=make)
    )
    return declared


def keys_of(section: type) -> Mapping[str, Key[Any]]:
    """Return the settings of a dataclass by the field that they fill, in its order."""
    return {
        declared.name: declared.metadata[_KEY]
        for declared in fields(section)
        if _KEY in declared.metadata
    }
