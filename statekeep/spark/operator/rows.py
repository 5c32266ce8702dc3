"""Rows that look like pyspark's, made and read at a fraction of the cost."""

from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast

from pyspark.sql.types import Row


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return a subclass of pyspark's `Row` whose instances have the fields ``names``.

    It is made once: each task makes its codecs anew in each batch, and a class costs more than the rows of
    a small batch.

    A field is read by a descriptor of the class, where Row searches a list of names; a name that
    Row itself defines (``count``, ``index``) keeps Row's meaning, as in Spark. An instance is
    pickled as a plain Row.
    """
    members = namedtuple("members", [f"field_{i}" for i in range(len(names))])  # type: ignore[misc]  # noqa: PYI024 - only its descriptors are used
    body: dict[str, Any] = {"__fields__": list(names)}
    for i, name in enumerate(names):
        if not hasattr(Row, name) and name not in body:
            body[name] = vars(members)[f"field_{i}"]
    return type("Row", (Row,), body)


def row_maker(names: Sequence[str]) -> Callable[[Sequence[Any]], Row]:
    """Return a function that makes a row of ``names`` from its values, without a check."""
    make = cast("Callable[[type[Row], Sequence[Any]], Row]", tuple.__new__)
    return partial(make, row_class(tuple(names)))
