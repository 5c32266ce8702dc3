"""Cutting a blob into the parts that are moved one by one."""

from dataclasses import dataclass
from typing import Final

from statekeep.backends.blob.managers.object_client import PartLimits

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a blob's bytes."""

    number: int
    """From 0."""
    start: int
    size: int


def cut(size: int, part_bytes: int, *, start: int = 0, number: int = 0) -> list[Part]:
    """Return the parts of a blob of ``size`` bytes from ``start`` on; all but the last are equal.

    They are numbered from ``number`` on.
    """
    return [
        Part(each, begin, min(part_bytes, size - begin))
        for each, begin in enumerate(range(start, size, part_bytes), number)
    ]


def fitting_part_bytes(size: int, wanted: int, limits: PartLimits) -> int:
    """Return the size of the parts to upload a blob in: as wanted, if the store takes as many.

    A blob that is too large for that gets larger parts, in whole MiB: 10,000 parts of 16 MiB
    are 156 GiB.
    """
    smallest = -(-size // limits.max_parts)
    return max(wanted, limits.min_bytes, -(-smallest // _MIB) * _MIB if smallest > wanted else 0)
