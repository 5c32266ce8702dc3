"""HTML and SVG as text: what is not markup already is escaped."""

from collections.abc import Iterable
from html import escape
from typing import Final

from statekeep.cli.output import harmless

_VOID: Final = frozenset({"meta", "link", "br"})
"""Elements without an end."""


class Markup(str):
    """Text that is put into a page as it is. Made by `tag` and `joined`."""

    __slots__ = ()


def tag(element: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        element: Its name.
        children: What is in it: markup as it is, other text escaped.
        attributes: ``class_`` is ``class``; other underscores become hyphens. One of None is left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{joined(children)}</{element}>")


def joined(children: Iterable[str]) -> Markup:
    """Return several parts as one."""
    return Markup("".join(c if isinstance(c, Markup) else _escaped(c) for c in children))


def _escaped(text: str) -> str:
    return escape(harmless(text))
