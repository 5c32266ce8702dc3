"""The start of a Spark query where several drivers begin a job at once."""

from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types

from statekeep.errors import TaskFencedError
from statekeep.spark import query_run

METADATA = "Multiple streaming queries are concurrently using file:/checkpoint."
FENCED = TaskFencedError("another driver has taken over this job", own_epoch=1, newer_epoch=2)


class Writer:
    """Fails as Spark's does, an error for each start, then starts."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)

    def start(self) -> str:
        if self.errors:
            raise Py4JError(self.errors.pop(0))
        return "started"


class Job:
    def __init__(self, successor: TaskFencedError | None = None) -> None:
        self.successor = successor

    def find_successor(self) -> TaskFencedError | None:
        return self.successor


def start(writer: Writer, job: Job) -> Any:
    return query_run._start(writer, job)  # type: ignore[arg-type]


def test_the_newest_driver_starts_though_an_older_one_has_written_the_metadata() -> None:
    assert start(Writer(METADATA), Job()) == "started"


def test_a_driver_that_was_replaced_does_not_start_again() -> None:
    writer = Writer(METADATA)
    with pytest.raises(TaskFencedError) as caught:
        start(writer, Job(FENCED))
    assert caught.value is FENCED


@pytest.mark.parametrize("errors", [(METADATA, METADATA), ("no such class",)])
def test_another_error_and_a_second_one_are_raised(errors: tuple[str, ...]) -> None:
    writer = Writer(*errors)
    with pytest.raises(Py4JError, match=errors[-1]):
        start(writer, Job())
    assert writer.errors == []
