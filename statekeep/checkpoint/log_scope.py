"""Which job log is whose: the scopes that `StateBackendFactory.job_log` is asked for."""

from typing import Final

from statekeep.checkpoint.escaping import escape_name

MAIN_OPERATOR: Final = "main"
"""The one stateful operator of a job; in plain Python it stands for the program."""

MAIN_STORE: Final = "state"
"""The store on Spark of every state variable that no setting puts into another one."""


def job_scope(job_name: str) -> str:
    """Return the scope of a job's one log, as on Spark."""
    return escape_name(job_name)


def task_scope(job_name: str, operator: str, task_name: str) -> str:
    """Return the scope of one task's log, as in plain Python."""
    return "/".join(map(escape_name, (job_name, operator, task_name)))
