"""How far a restore is."""

from dataclasses import dataclass

from statekeep.checkpoint.checkpoints import TaskName


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far the restore of one task is."""

    task_name: TaskName
    total_bytes: int
    """To be fetched, as far as known by now; grows when a fallback has to fetch anew."""
    done_bytes: int
    """Fetched by now, failed tries included."""
    is_done: bool = False
    """The restore has ended, well or not."""
