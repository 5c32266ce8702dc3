"""The tasks whose stores this Python worker has open between two batches."""

import gc
import logging
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from statekeep.checkpoint.checkpoints import VersionId
from statekeep.errors import StateBackupError
from statekeep.spark.worker.job_spec import JobSpec
from statekeep.stores.open_task import OpenTask

logger = logging.getLogger(__name__)

_MAX_OPEN: Final = 64
"""Tasks that one worker holds open at least, as long as it has file descriptors for them."""
_IDLE_BATCHES: Final = 16
"""A task that this worker has not run for so many batches runs in another one: its files here would
keep old files of the state from being freed."""

_Key = tuple[str, int, int]
"""(local directory of the job, epoch, task)"""


class OpenTasks:
    """Keeps tasks open by job, driver session and number; the least used are closed first.

    One per process, as Spark gives a task to any of an executor's workers. Used by one thread.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[_Key, OpenTask] = OrderedDict()
        self._last_batch: dict[_Key, int] = {}

    def get(self, spec: JobSpec, epoch: int, task: int, batch: int) -> OpenTask:
        """Return a task's stores, which may not be open yet.

        Args:
            spec: The job.
            epoch: The driver session; what older ones left open is closed.
            task: Its number.
            batch: The batch that is run or submitted.

        Raises:
            StateBackupError: The driver session has ended, and Spark has not yet stopped this task of it:
                nothing would sweep what it left.
        """
        key = (spec.local_name, epoch, task)
        found = self._open.pop(key, None)
        if found is None:
            if spec.has_ended:
                raise StateBackupError(
                    f"the query of this task has ended: session={spec.session} task={task}"
                )
            self._close_older_sessions(spec.local_name, epoch)
            settings = {name: spec.config.store(name) for name in spec.stores}
            found = OpenTask(
                spec.directory(task), settings, session_prefix(epoch), spec.listed_stores
            )
        self._open[key] = found
        self._last_batch[key] = batch
        return found

    def begin_seals(self, spec: JobSpec, epoch: int, versions: Mapping[int, VersionId]) -> None:
        """Let those of the tasks that are open at their version begin to write for its image."""
        for task, version in versions.items():
            found = self._open.get((spec.local_name, epoch, task))
            if found is not None:
                found.begin_seal(version)

    def trim(self, spec: JobSpec, epoch: int, batch: int, most: int) -> None:
        """Close what is held in vain, and what is too much, the least used first.

        Args:
            spec: The job at hand.
            epoch: Its driver session.
            batch: The batch that was run.
            most: Tasks that may stay open, if more than `_MAX_OPEN`.
        """
        for key in list(self._open):
            is_idle = key[:2] == (spec.local_name, epoch) and (
                self._last_batch[key] < batch - _IDLE_BATCHES
            )
            if is_idle or self._open[key].is_lost:  # a session of any job may have ended
                self._close(key)
        while len(self._open) > max(_MAX_OPEN, most):
            self._close(next(iter(self._open)))
        while self._open and _too_many_files():
            self._close(next(iter(self._open)))

    def close_job(self, spec: JobSpec, epoch: int) -> threading.Thread:
        """Close the stores of all tasks of a job that a driver session has opened here.

        Returns:
            A thread that removes their files: this takes as long again, and the caller has to wait for
            other things too.
        """
        held = [
            self._forgotten(key) for key in list(self._open) if key[:2] == (spec.local_name, epoch)
        ]
        for task in held:
            task.close_stores()

        def remove() -> None:
            for task in held:
                try:
                    task.close()
                except OSError as exc:  # the next sweep takes it
                    logger.info("files of a closed task are left to a sweep: error=%s", exc)

        removing = threading.Thread(target=remove, name="statekeep-remove", daemon=True)
        removing.start()
        return removing

    def _close_older_sessions(self, local_name: str, epoch: int) -> None:
        for key in list(self._open):
            if key[0] == local_name and key[1] < epoch:
                self._close(key)

    def _close(self, key: _Key) -> None:
        self._forgotten(key).close()

    def _forgotten(self, key: _Key) -> OpenTask:
        self._last_batch.pop(key)
        return self._open.pop(key)


def _too_many_files() -> bool:
    """Return whether more than half of the descriptors are in use that this process may have."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return False
    return len(os.listdir("/proc/self/fd")) > soft_limit // 2  # noqa: PTH208 - only their number


open_tasks: Final = OpenTasks()
"""Of this process."""
_frozen: Final[list[bool]] = []


def session_prefix(epoch: int) -> str:
    """Return what the names of a driver session's work directories begin with."""
    return f"{epoch}-"


def freeze_garbage_collector() -> None:
    """Take what is loaded by now out of garbage collection, once per worker.

    pyspark's daemon collects after every task: with 86,000 objects of libraries that takes 57 ms,
    without them 0.06.
    """
    if not _frozen:
        _frozen.append(True)
        gc.collect()
        gc.freeze()
