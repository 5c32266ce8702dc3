"""The local file that a blob is downloaded into."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.run_to_end import run_to_end
from statekeep.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


class LocalCopy:
    """A new local file that grows chunk by chunk, with the digest of what is in it.

    One call of the executor per step: each ends by itself, and between two of them a cancel takes
    effect, so that nothing is written after it. Every method raises `ConfigError` where the local disk refuses.
    """

    def __init__(self, path: Path, executor: BlockingExecutor) -> None:
        self._path = path
        self._executor = executor
        self._digest = hashlib.sha256()

    async def create(self) -> None:
        """Create the file, which must not exist."""
        await self._run(self._path.touch, exist_ok=False)

    async def append(self, chunk: bytes) -> None:
        """Write the next bytes."""
        await self._run(self._append, chunk)

    async def finish(self) -> str:
        """Make the file durable; return the sha-256 of its content, in hex."""
        await self._run(self._sync)
        return self._digest.hexdigest()

    def _append(self, chunk: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(chunk)
        self._digest.update(chunk)

    def _sync(self) -> None:
        with self._path.open("rb+") as file:
            os.fsync(file.fileno())

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await run_to_end(self._executor, call, *args, **kwargs)
        except OSError as exc:
            msg = (
                f"a blob cannot be written to this machine: path={self._path} reason={exc.strerror}"
            )
            raise ConfigError(msg) from exc
