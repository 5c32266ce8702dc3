"""How the parts of a job tell what happens to them, without knowing who listens."""

from collections.abc import Iterator
from typing import Any, Final, Protocol, cast

from statekeep.config.redact import redact

_LONGEST_SUMMARY: Final = 500


class Note(Protocol):
    """Takes in an event; never waits and never fails."""

    def __call__(self, kind: str, **details: Any) -> None:  # noqa: ANN401 - each kind has its own
        """Take in an event of a kind, with what JSON can hold."""
        ...


def no_note(kind: str, **details: Any) -> None:  # noqa: ANN401 - each kind has its own
    """Forget an event, where nobody asks for it."""


def summary_of(error: BaseException) -> str:
    """Return the first line of an error with its type, for an event: no stack, no URI's secrets."""
    first, *_ = [*str(error).strip().splitlines(), ""]
    return redact(f"{type(error).__name__}: {first}"[:_LONGEST_SUMMARY], is_secret=False)


def reasons_of(error: BaseException) -> Iterator[str]:
    """Yield what each error says that is not a group of others, with its notes."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from reasons_of(each)
    else:
        yield "; ".join([str(error), *getattr(error, "__notes__", ())])
