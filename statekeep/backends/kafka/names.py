"""Names of topics, partitions and transactional ids."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.names import escape_name, is_escaped, unescape_name
from statekeep.errors import ConfigError

_PLAIN: Final = re.compile(r"[A-Za-z0-9-]")
_TASK_NUMBER: Final = re.compile(r"Partition (0|[1-9][0-9]{0,8})")
_MAX_TOPIC_LENGTH: Final = 249
_ESCAPED: Final = "(?:[A-Za-z0-9-]|_[0-9a-f]{2})+"
_LOG: Final = "job-log"


@dataclass(frozen=True, slots=True)
class ChangelogPartition:
    """Where the changes of one store of one task go."""

    topic: str
    partition: int


def topic_name(prefix: str, *parts: str) -> str:
    """Return a name that Kafka takes; different parts give different names.

    Letters, digits and ``-`` stay; every other byte of the UTF-8 form is ``_XX``.

    Raises:
        ConfigError: The name is too long for a topic.
    """
    name = ".".join((prefix, *map(_escape, parts)))
    if len(name) > _MAX_TOPIC_LENGTH:
        raise ConfigError(f"name is too long for a topic: name={name}")
    return name


def log_topic(prefix: str, scope: str) -> str:
    """Return the topic of the job log of a scope.

    Raises:
        ConfigError: The name is too long for a topic.
    """
    return topic_name(prefix, *scope.split("/"), _LOG)


def task_of_log(prefix: str, job_name: str, operator: str, topic: str) -> str | None:
    """Return the task of a job in plain Python whose log a topic is; None for any other topic."""
    start = topic_name(prefix, escape_name(job_name), escape_name(operator), "")
    form = rf"{re.escape(start)}({_ESCAPED})\.{_LOG}"
    match = re.fullmatch(form, topic)
    part = "" if match is None else unquote(match[1].replace("_", "%"))
    return unescape_name(part) if is_escaped(part) else None


def changelog_topic(prefix: str, task: TaskIdentity, store: StoreName) -> str:
    """Return the changelog topic of a store that names none: one partition per task."""
    return topic_name(prefix, task.job_name, task.operator, store, "changelog")


def changelog_partition(task: TaskIdentity) -> int:
    """Return the partition of a task: its number.

    Raises:
        ConfigError: The task has none.
    """
    match = _TASK_NUMBER.fullmatch(task.task_name)
    if match is None:
        raise ConfigError(
            f"task has no number, so no changelog partition: task={task.task_name}",
            hint="name tasks 'Partition 0', 'Partition 1', ... for the kafka backend",
        )
    return int(match[1])


def transactional_id(prefix: str, task: TaskIdentity) -> str:
    """Return the transactional id under which the changes of one task are written.

    Independent of the job's uid, so that a new owner fences the one before.
    """
    return topic_name(prefix, task.job_name, task.operator, task.task_name)


def _escape(part: str) -> str:
    return "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"_{byte:02x}" for byte in char.encode())
        for char in part
    )
