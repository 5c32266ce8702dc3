"""What came of a batch that ran again, and how it compares with the record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from statekeep.checkpoint.records import TaskBatch
from statekeep.spark.batch_replay.trace import KeyTrace

COMPARED: Final = ("rows_in", "input_digest", "rows_out", "output_digest", "changes_digest")
"""The fields of a batch record that a second run gives again."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a task did otherwise than recorded."""

    batch: int
    task: int
    """Number of the task."""
    what: str
    """One of `COMPARED`."""
    recorded: int | str
    replayed: int | str
    keys: str = ""
    """The first and the last grouping key of the rows of the task; "" where it had none."""


@dataclass(frozen=True)
class ReplayedBatch:
    """One batch of a job, as it ran again in this process."""

    job_name: str
    batch: int
    commit_batch: int
    """The batch of the commit whose state was restored; those after it ran again first."""
    tasks: Sequence[int]
    """Numbers of the tasks that ran: of one key, its own alone."""
    keys: Sequence[KeyTrace]
    """What each key had and did, in the order of processing; empty for `transformWithStateInArrow`."""
    untraced: int
    """Calls of the processor for keys beyond the first 10,000, which are not shown."""
    output: pa.Table
    """The rows that the tasks put out, with the columns of the operator."""
    expired_values: int
    """Values that the batch removed, as they had outlived their time."""
    late_rows: int
    """Rows that never reached the processor, as they were older than the watermark."""
    differences: Sequence[Difference]
    """What is not as recorded, in this batch and in those that ran before it; of the tasks that ran."""

    @property
    def matches(self) -> bool:
        """Whether the tasks that ran did what the job has recorded of them."""
        return not self.differences

    def as_json(self) -> dict[str, Any]:
        """Return everything as values that JSON has."""
        return {
            "job": self.job_name,
            "batch": self.batch,
            "commit_batch": self.commit_batch,
            "tasks": list(self.tasks),
            "matches": self.matches,
            "differences": [_fields(found) for found in self.differences],
            "rows_out": self.output.num_rows,
            "expired_values": self.expired_values,
            "late_rows": self.late_rows,
            "untraced": self.untraced,
            "keys": [
                {
                    "key": list(trace.key),
                    "task": trace.task,
                    "rows_in": trace.rows_in,
                    "steps": [_fields(step) for step in trace.steps],
                    "rows_out": trace.rows_out,
                }
                for trace in self.keys
            ],
        }


def compared(
    batch: int,
    recorded: Mapping[int, TaskBatch],
    replayed: Mapping[int, tuple[TaskBatch, str]],
) -> list[Difference]:
    """Return what differs between a record and a second run.

    Args:
        batch: Whose.
        recorded: Of each task.
        replayed: The same, with the range of keys, of the tasks that ran.
    """
    found: list[Difference] = []
    for task, (now, keys) in sorted(replayed.items()):
        before = recorded.get(task, TaskBatch(version=""))
        for what in COMPARED:
            one, other = getattr(before, what), getattr(now, what)
            if one != other:
                found.append(Difference(batch, task, what, one, other, keys))
    return found


def _fields(found: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass of this package
    return {name: getattr(found, name) for name in found.__slots__}
