"""What the user may have meant by a name that is not there."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the hint of an error about an unknown name.

    Args:
        name: What was asked for.
        known: What there is.
        otherwise: The hint where nothing resembles the name.
    """
    folded = {one.casefold(): one for one in known}
    found = get_close_matches(name.casefold(), folded, 1)
    return f"did you mean {folded[found[0]]!r}?" if found else otherwise
