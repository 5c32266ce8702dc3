"""What tasks are called, and where they keep their state; known to sidecars, without Spark."""

from pathlib import Path
from typing import Final

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.names import MAIN_OPERATOR, MAIN_STORE
from statekeep.stores.task_directory import TaskDirectory

STATE_STORE: Final = StoreName(MAIN_STORE)
"""The store of a task that holds each state variable that no setting puts into another one."""

SCRATCH: Final = "reshape"
"""Beside the operators of a job on a host: what another number of tasks needs while it is made."""
SCRATCH_PREFIX: Final = f"{SCRATCH}-"
"""Begins the names of the temporary directories there."""


def operator_name(number: int) -> str:
    """Return the name of an operator by its position in the query, from 0."""
    return MAIN_OPERATOR if number == 0 else f"operator-{number + 1}"


def operator_tasks(number: int, operators: int, partitions: int) -> range:
    """Return the tasks of an operator: those of a query are numbered through, operator by operator.

    Args:
        number: Of the operator, from 0.
        operators: How many the query has.
        partitions: How many tasks the query has.
    """
    count = partitions // operators
    return range(number * count, (number + 1) * count)


def local_directory(local_dir: Path, local_name: str, partition: int) -> TaskDirectory:
    """Return the local directory of a task, for tasks and sidecars."""
    identity = TaskIdentity(local_name, MAIN_OPERATOR, task_name(partition))
    return TaskDirectory.of(local_dir, identity)


def task_name(partition: int) -> TaskName:
    """Return the task of a partition, named as Samza names tasks."""
    return TaskName(f"Partition {partition}")


def partition_of(task: str) -> int:
    """Return the partition of a task's name."""
    return int(task.removeprefix("Partition "))
