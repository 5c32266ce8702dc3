"""Copies of a native query's checkpoint location, made beside it in the program that runs it."""

import asyncio
import atexit
import logging
import os
import re
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from statekeep.checkpoint.error_summary import message_of
from statekeep.clock import Clock, SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError, RetriableError, StateBackupError
from statekeep.guarding.continuous_copies import keep_copying
from statekeep.guarding.copying import Copied, open_copies
from statekeep.guarding.settings import settings_of_copies
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.query import StatefulStreamingQuery
from statekeep.spark.session import check_classic
from statekeep.stores.temporary_directory import temporary_directory

logger = logging.getLogger(__name__)

_TEMPORARY: Final = re.compile(r"/temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/?$")
"""What Spark calls the location of a query that was given none."""
_POLL_S: Final = 0.5
_OPEN_S: Final = 30.0
"""How long `guard` waits to be told that something is wrong with the place of the copies."""
_LAST_S: Final = 60.0
"""How long the last copy may take once the query has ended."""


class QueryGuard:
    """Copies a query's checkpoint location after its batches, until the query ends; made by `guard`.

    The query does not wait for it, nor does it end by what happens here.
    """

    def __init__(
        self, query: StreamingQuery, config: Config, location: str, every_s: float, clock: Clock
    ) -> None:
        self._query = query
        self._config = config
        self._location = location
        self._every_s = every_s
        self._clock = clock
        self._opened: Future[None] = Future()
        self._is_asked_to_stop = threading.Event()
        self._is_last = False
        self._last_copy: Copied | None = None
        self._error: StateBackupError | None = None
        self._thread = threading.Thread(target=self._run, name="statekeep-guard", daemon=True)

    @property
    def isActive(self) -> bool:  # noqa: N802 - as Spark names it
        """Whether copies are still made."""
        return self._thread.is_alive()

    @property
    def lastCopy(self) -> Copied | None:  # noqa: N802 - as `StatefulStreamingQuery.lastCommit`
        """The newest copy that was made here; None before the first."""
        return self._last_copy

    def exception(self) -> StateBackupError | None:
        """Return why no more copies are made; None: the query has ended, or copies are made."""
        return self._error

    def stop(self, timeout_s: float = _LAST_S) -> None:
        """Copy the newest batch, and make no more copies; the query goes on. Blocks. Idempotent.

        Args:
            timeout_s: How long to wait for that copy.
        """
        self._is_asked_to_stop.set()
        self.awaitTermination(timeout_s)

    def awaitTermination(self, timeout_s: float | None = None) -> bool:  # noqa: N802 - as Spark names it
        """Wait until no more copies are made, which is a copy after the end of the query.

        Args:
            timeout_s: How long to wait at most.

        Returns:
            Whether that is so.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _start(self) -> None:
        """Begin, and wait until the place of the copies is open.

        Raises:
            StateBackupError: It will not be, whatever is tried again.
        """
        self._thread.start()
        atexit.register(self._finish)
        with suppress(TimeoutError):
            self._opened.result(_OPEN_S)

    def _finish(self) -> None:
        """Let the last copy end at the end of the program, if the query has ended."""
        if self._has_ended():
            self._thread.join(_LAST_S)

    def _run(self) -> None:
        try:
            with temporary_directory("statekeep-guard-") as directory:
                asyncio.run(self._keep(Path(directory)))
        except StateBackupError as exc:
            self._fail(exc)
        finally:
            if not self._opened.done():
                self._opened.set_result(None)

    def _fail(self, error: StateBackupError) -> None:
        self._error = error
        if not self._opened.done():
            self._opened.set_exception(error)
        else:
            logger.error(
                "no more copies are made: location=%s error=%s", self._location, message_of(error)
            )

    async def _keep(self, directory: Path) -> None:
        """Copy until the query has ended, and for a while longer."""
        copying = asyncio.create_task(self._copy_through_outages(directory))
        end = asyncio.create_task(self._wait_for_end())
        try:
            await asyncio.wait({copying, end}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({copying}, timeout=_LAST_S)
            if copying.done():
                copying.result()
            else:
                logger.warning(
                    "the last copy takes too long and is given up: location=%s timeout_s=%s",
                    self._location,
                    _LAST_S,
                )
        finally:
            for task in (copying, end):
                task.cancel()
            await asyncio.wait({copying, end})

    async def _wait_for_end(self) -> None:
        while not self._has_ended():
            await self._clock.sleep(_POLL_S)

    async def _copy_through_outages(self, directory: Path) -> None:
        """Open the place of the copies, as often as it takes, and copy."""
        is_told = False
        while not self._is_last:
            try:
                await self._copy(directory)
            except RetriableError as exc:
                if not is_told:
                    logger.warning(
                        "the location of the copies cannot be reached, trying again: error=%s",
                        message_of(exc),
                    )
                is_told = True
                if not self._opened.done():
                    self._opened.set_result(None)
                await self._clock.sleep(_POLL_S)
                self._is_last = self._has_ended()
            else:
                return

    async def _copy(self, directory: Path) -> None:
        """Copy after batches, until the query has ended and its newest batch is copied."""
        looked = asyncio.Event()
        batch = -1

        async def next_batch(after_s: float) -> None:
            nonlocal batch
            if self._is_last:
                looked.set()
                await asyncio.Event().wait()  # until it is cancelled
            began_ns = self._clock.monotonic_ns()
            while True:
                await self._clock.sleep(_POLL_S)
                self._is_last = self._has_ended()
                newest = self._newest_batch()
                is_time = self._clock.monotonic_ns() - began_ns >= after_s * 1e9
                if self._is_last or (is_time and newest != batch):
                    batch = newest
                    return

        opened = open_copies(
            self._config,
            self._location,
            self._clock,
            owner=f"{gethostname()}:{os.getpid()}",
            may_wait=True,
        )
        async with opened as copies:
            if not self._opened.done():
                self._opened.set_result(None)
            await next_batch(0)  # a query that has just begun has nothing to copy yet
            keeping = asyncio.create_task(
                keep_copying(
                    copies,
                    directory,
                    pause=lambda: next_batch(self._every_s),
                    on_copy=self._copied,
                )
            )
            last = asyncio.create_task(looked.wait())
            try:
                await asyncio.wait({keeping, last}, return_when=asyncio.FIRST_COMPLETED)
                if keeping.done():
                    keeping.result()
            finally:
                for task in (keeping, last):
                    task.cancel()
                await asyncio.wait({keeping, last})

    def _copied(self, copied: Copied) -> None:
        self._last_copy = copied
        logger.info(
            "the location is copied: location=%s batch=%d commit=%d new_files=%d new_bytes=%d",
            self._location,
            copied.batch,
            copied.position,
            copied.new_files,
            copied.new_bytes,
        )

    def _has_ended(self) -> bool:
        if self._is_asked_to_stop.is_set():
            return True
        try:
            return not self._query.isActive
        except (
            Py4JError,
            PySparkException,
            OSError,
        ):  # the session has ended, and the query with it
            return True

    def _newest_batch(self) -> int:
        """Return the number of the newest batch that the query reports; -1: there is none."""
        try:
            progress = self._query.lastProgress
        except (Py4JError, PySparkException, OSError):
            return -1
        return -1 if progress is None else int(progress["batchId"])


def guard(
    query: StreamingQuery,
    to: str,
    *,
    settings: Settings | None = None,
    job_name: str | None = None,
    every_s: float = 0.0,
) -> QueryGuard:
    """Copy the checkpoint location of a native Spark query after its batches, beside it.

    As ``statekeep guard run`` does from outside: each copy is the newest sound batch, and only files that
    the copy before does not have are copied. Called on the driver, after ``start()``. The query keeps
    Spark's own state store; its batches do not wait, and an outage of the copies does not end it: it is
    logged once and tried again. Once the query has ended, its newest batch is copied; the end of the
    program waits for that for up to a minute.

    Args:
        query: Any streaming query of Spark's, also one without state.
        to: Where the copies go, as ``blob.store.uri``.
        settings: Of the job that holds the copies: retention, encryption, rate limits and others.
        job_name: Its name; None: named after the location.
        every_s: Seconds from one copy to the next at least; 0: a copy follows each batch, or as many as
            came during the copy before.

    Raises:
        ConfigError: The query is one of Statekeep, which is backed up already; it has a temporary
            checkpoint location; a setting is wrong; or the job is another one.
        CheckpointLocationError: The copies are of another query.
        TaskFencedError: Another guard of this location was started in this moment.
    """
    check_classic(query)
    if isinstance(query, StatefulStreamingQuery):
        raise ConfigError(
            "the query's state is backed up by statekeep already",
            hint="guard queries that run on Spark's own state store",
        )
    if every_s < 0:
        raise ConfigError(f"every_s must be 0 or more: value={every_s}")
    handle: Any = query._jsq  # noqa: SLF001 - no public way to the location
    location = str(handle.streamingQuery().resolvedCheckpointRoot())
    if _TEMPORARY.search(location):
        raise ConfigError(
            "the query has a temporary checkpoint location, which is deleted when it stops",
            key="checkpointLocation",
            hint='set .option("checkpointLocation", ...) before start()',
        )
    config = settings_of_copies(location, to, job_name, read_settings(settings))
    made = QueryGuard(query, config, location, every_s, SystemClock())
    made._start()  # noqa: SLF001 - the only one who starts it
    return made
