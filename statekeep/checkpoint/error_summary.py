"""What errors say, without secrets: for events, logs and records."""

from collections.abc import Iterator
from typing import Final, cast

from statekeep.config.redact import redact_text
from statekeep.errors import TaskFencedError
from statekeep.events import JobFenced, JobStopped, Report

_LONGEST_SUMMARY: Final = 500


def summary_of(error: BaseException) -> str:
    """Return the first line of an error with its type, for an event: no stack, no secrets."""
    return first_line_of(f"{type(error).__name__}: {str(error).strip()}")


def first_line_of(text: str) -> str:
    """Return the first line of a text, for an event: not too long, no secrets."""
    first, *_ = text.splitlines()
    return redact_text(first)[:_LONGEST_SUMMARY]


def text_of(error: BaseException) -> str:
    """Return all that an error says: its type, its text and its notes; no secrets."""
    return f"{type(error).__name__}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """Return the text of an error, with its notes; no secrets."""
    return redact_text("; ".join([str(error), *getattr(error, "__notes__", ())]))


def report_end(
    report: Report, error: BaseException | None, *, committed: int = -1, head: int = -1
) -> None:
    """Report that a job has ended.

    Args:
        report: Gets the events.
        error: Why; None if it was asked to.
        committed: Batch of the newest commit.
        head: The newest batch.
    """
    if isinstance(error, TaskFencedError):
        report(JobFenced(error.own_epoch, error.newer_epoch))
    report(JobStopped(None if error is None else summary_of(error), committed, head))


def reasons_of(error: BaseException) -> Iterator[str]:
    """Yield the text of each error, with its notes; of a group, that of its members."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from reasons_of(each)
    else:
        yield message_of(error)
