"""Which backends of a task take part in its commits: all that are ready, less those left out."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statekeep.backends.base import (
    BlockingExecutor,
    StateBackendFactory,
    TaskBackupManager,
)
from statekeep.backends.preparation import prepare
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, StoreName, TaskName
from statekeep.clock import Clock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskBackend:
    """One backend of a task and the stores that it backs up."""

    name: BackendName
    manager: TaskBackupManager
    stores: tuple[StoreName, ...]
    is_optional: bool
    """Every one of its stores lists it as optional."""


class Participation:
    """Gets the backends of a task ready, each once, and keeps account of those left out.

    An optional backend that fails is left out until it answers. Coroutines of one event loop.
    """

    def __init__(
        self,
        task_name: TaskName,
        backends: Sequence[TaskBackend],
        factories: Mapping[BackendName, StateBackendFactory],
        *,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> None:
        """Take the backends; nothing is reached yet.

        Args:
            task_name: For the log.
            backends: Of the task.
            factories: Of each, by name.
            executor: For blocking calls.
            clock: For pauses.
        """
        self._task_name = task_name
        self._backends = backends
        self._factories = factories
        self._executor = executor
        self._clock = clock
        self._start: CheckpointV2 | None = None
        self._ready: set[BackendName] = set()
        self._left_out: set[BackendName] = set()
        self._getting_ready = asyncio.Lock()

    async def start(self, checkpoint: CheckpointV2 | None) -> None:
        """Get every backend ready with the checkpoint that the task starts from.

        Raises:
            ConfigError: The place of a required one is unreachable or refuses us.
            RetriableError: A service may answer later.
        """
        self._start = checkpoint
        await self.find_ready()

    async def find_ready(self) -> tuple[TaskBackend, ...]:
        """Return the backends that take part as a matter of course: all but those left out."""
        return tuple([backend for backend in self._backends if await self.is_ready(backend)])

    async def is_ready(self, backend: TaskBackend) -> bool:
        """Get one backend ready, if it is not; an optional one that cannot is left out."""
        if backend.name in self._left_out:
            return False
        try:
            await self._init(backend)
        except Exception as exc:
            if not backend.is_optional:
                raise
            self.go_on_without(backend, "init", exc)
            return False
        return True

    async def rejoin(self, backend: TaskBackend) -> None:
        """Get a backend ready that was left out, once it answers; creates what it lacks."""
        await prepare(self._factories[backend.name].admin(self._executor, self._clock))
        await self._init(backend)

    def take_back(self, backend: TaskBackend) -> None:
        """Let a backend take part as a matter of course again."""
        self._left_out.discard(backend.name)

    def go_on_without(self, backend: TaskBackend, step: str, error: Exception) -> None:
        """Leave an optional backend out until it answers, loudly.

        Also called on an executor thread, while the loop waits for that call.
        """
        self._left_out.add(backend.name)
        logger.error(
            "optional backend is left out: task=%s backend=%s step=%s",
            self._task_name,
            backend.name,
            step,
            exc_info=error,
        )

    def ask_first(self, names: Sequence[BackendName]) -> None:
        """Leave out those that are optional; each is asked before it takes part in a commit."""
        self._left_out |= {b.name for b in self._backends if b.is_optional and b.name in names}

    async def _init(self, backend: TaskBackend) -> None:
        async with self._getting_ready:
            if backend.name not in self._ready:
                await backend.manager.init(self._start)
                self._ready.add(backend.name)
