"""What tasks are called, and where they keep their state; known to containers, without Spark."""

from pathlib import Path
from typing import Final

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.stores.task_directory import TaskDirectory

STATE_STORE: Final = StoreName("state")
"""The one store of a stateful operator on Spark: it holds all state variables of a task."""


def local_directory(local_dir: Path, local_name: str, partition: int) -> TaskDirectory:
    """Return the local directory of a task, for tasks and containers."""
    identity = TaskIdentity(local_name, MAIN_OPERATOR, task_name(partition))
    return TaskDirectory.of(local_dir, identity)


def task_name(partition: int) -> TaskName:
    """Return the task of a partition, named as Samza names tasks."""
    return TaskName(f"Partition {partition}")


def partition_of(task: str) -> int:
    """Return the partition of a task's name."""
    return int(task.removeprefix("Partition "))
