"""Tells a right start, one at an older commit that was said, and a clear error from a wrong one.

Where the job stands is known from its own journals, which no other process can write: the store that
would have to say it has been tampered with.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
Fold = Callable[[str, int], Mapping[str, Mapping[str, str]]]


@dataclass(slots=True)
class _TaskTruth:
    """Where a task may stand."""

    durable: int = -1
    """The newest offset that the job was told to be durable, or that it has started from since."""
    begun: set[int] = field(default_factory=set[int])
    """Offsets of the commits since then whose end was not reported."""
    ever: set[int] = field(default_factory=lambda: {-1})
    """Offsets of all the commits that were ever begun, and of empty state."""


class Judge:
    """Follows the lives of one job, in order.

    Attributes:
        failures: What must not have happened, in words.
        verdicts: How often each thing happened that may.
    """

    def __init__(self, expected: Fold, places: Collection[str]) -> None:
        """Take what the state at an offset is, and the names of all that may be restored from."""
        self._expected = expected
        self._places = frozenset(places)
        self._tasks: dict[str, _TaskTruth] = {}
        self.failures: list[str] = []
        self.verdicts: Counter[str] = Counter()

    def hear(self, life: str, event: Event, *, sources: Collection[str] = ()) -> None:
        """Take in the next event of a journal.

        Args:
            life: Whose it is.
            event: As `chaos.plain.job` writes it.
            sources: The places that this life restores from; empty: all of them.
        """
        match event["event"]:
            case "begun":
                task = self._of(event)
                task.begun.add(event["offset"])
                task.ever.add(event["offset"])
            case "acknowledged":
                task = self._of(event)
                task.durable = max(task.durable, event["offset"])
                task.begun = {offset for offset in task.begun if offset > task.durable}
            case "started":
                self._judge_start(life, event, frozenset(sources) or self._places)
            case "failed":
                self._judge_errors(life, event)
            case "fenced":
                self.verdicts["fenced"] += 1
            case _:
                pass

    def _judge_start(self, life: str, event: Event, sources: frozenset[str]) -> None:
        name, offset, task = event["task"], event["offset"], self._of(event)
        is_reported = sources <= set(event["failed_sources"])
        if event["content"] != self._expected(name, offset):
            self._fail(f"{life}: {name} started at {offset} with another state: {event['content']}")
        if offset == task.durable or offset in task.begun:
            has_fallen_back = set(event["failed_sources"]) - {"local"}
            self.verdicts["right, from another copy" if has_fallen_back else "right"] += 1
        elif offset not in task.ever or offset > task.durable:
            self._fail(f"{life}: {name} started at {offset}, where no commit was begun")
        elif not is_reported:
            self._fail(
                f"{life}: {name} started at {offset} and not at {task.durable}, without a message:"
                f" {event['failed_sources']}"
            )
        else:
            self.verdicts["older commit, said"] += 1
        task.durable, task.begun = offset, set()

    def _judge_errors(self, life: str, event: Event) -> None:
        for error in event["errors"]:
            if not error["is_ours"]:
                self._fail(f"{life}: an error that is none of ours: {event['error'][:800]}")
            elif not error["has_hint"]:
                self._fail(f"{life}: an error that does not say what to do: {event['error'][:800]}")
            else:
                self.verdicts["clear error"] += 1

    def _of(self, event: Event) -> _TaskTruth:
        return self._tasks.setdefault(event["task"], _TaskTruth())

    def _fail(self, text: str) -> None:
        if text not in self.failures:
            self.failures.append(text)
