"""The sidecar process: one event loop that uploads, restores and answers tasks."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from statekeep.checkpoint.error_summary import message_of
from statekeep.clock import Clock
from statekeep.config.job_settings import ContainerSettings
from statekeep.errors import CheckpointCorruptError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.spark.sidecar.outbox import Outbox
from statekeep.spark.sidecar.paths import NO_JVM, SidecarPaths
from statekeep.spark.sidecar.protocol import (
    MAX_GREETING_BYTES,
    NOT_ADMITTED,
    SIDECAR,
    STALE_SIDECAR,
    STOPPING_SIDECAR,
    TASK,
    Answer,
    Done,
    Follow,
    Followed,
    Hello,
    Progress,
    Proof,
    Refused,
    Request,
    Restore,
    Stop,
    SubmitVersion,
    Welcome,
    decode_greeting,
    decode_request,
    encode_frame,
    is_proof,
    job_key,
    new_nonce,
    peer_user,
    proof,
    read_frame,
)
from statekeep.spark.sidecar.work import SidecarWork

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_PROGRESS_PERIOD_S: Final = 0.5
_FOLLOW_S: Final = 0.2
"""How long a task waits at most for copies of state: meanwhile it has a core that a batch may need."""
_MAX_CONNECTIONS: Final = 256
"""An executor runs far fewer tasks at once, and a process may mostly have 1024 open files."""
_SILENCE_S: Final = 30.0
"""A task sends its request at once; one that is stopped holds a connection for no longer."""
_CLOSE_S: Final = 10.0
"""A call of a client library cannot be cancelled; its result counts for nothing by then."""


class SidecarServer:
    """Serves the tasks of one executor until the executor is gone and its outbox is empty.

    It works on sealed versions only, never on an open store. Everything runs on one event loop;
    what blocks goes through the pool of `SidecarWork`.
    """

    def __init__(
        self, paths: SidecarPaths, work: SidecarWork, clock: Clock, settings: ContainerSettings
    ) -> None:
        self._paths = paths
        self._work = work
        self._clock = clock
        self._grace_s = settings.grace_ms / 1000
        self._idle_ns = settings.idle_ms * 1_000_000
        self._asked_ns = clock.monotonic_ns()
        """When the newest request came, or the work on it ended."""
        self._outbox = Outbox(paths.outbox)
        self._newest = (0, 0)
        self._uploads: dict[tuple[int, int, int], asyncio.Task[None]] = {}
        self._resolved: set[tuple[int, int, int]] = set()
        """Submissions of the newest attempt that have their entry."""
        self._untaken: dict[tuple[int, int, int], SubmitVersion] = {}
        """Those that failed before they were acknowledged, and may stand on disk."""
        self._has_forgotten = False
        """Whether what was not acknowledged until then has been removed, or will be."""
        self._restores = 0
        self._connections = 0
        self._key = b""
        """The job's, read at the start, and again when a task shows another one."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_stopping = asyncio.Event()

    async def run(self, jvm_pid: int, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Serve until stopped, idle for long, or until the executor's JVM has ended.

        What is under way is finished then. That takes the grace time at most; less once a newer
        driver asks for anything.

        Args:
            jvm_pid: The executor's JVM.
            is_wanted: Asked once there is a socket: whether no stop came before.

        Raises:
            TimeoutError: A blocking call does not end: the process must, without waiting for it.
        """
        watch = _watch(jvm_pid, self._is_stopping.set)
        pending = await self._work.executor.run(self._outbox.pending)
        self._key = await self._work.executor.run(job_key, self._paths)
        server = await asyncio.start_unix_server(self._serve, path=str(self._paths.socket))
        own_socket = self._paths.socket.stat()
        if not is_wanted():
            self._is_stopping.set()
        try:
            for request in pending:
                self._start_upload(request)
            leaving = asyncio.create_task(self._stop_when_idle())
            await self._is_stopping.wait()
            leaving.cancel()
            await self._drain()
        finally:
            self._remove_socket(own_socket)  # while it is open, its inode has no other file
            # Not by `async with`, which waits for connections that are open, from Python 3.12.1 on.
            server.close()
            if watch is not None:
                os.close(watch)
            self._forget_untaken()
            await self._end_work()

    def _remove_socket(self, own: os.stat_result) -> None:
        """Remove the own socket; not that of a successor, where the local directory was lost."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._paths.socket.stat(), own):
                self._paths.socket.unlink()

    def _forget_untaken(self) -> None:
        """Leave no submission behind whose driver was told that it failed.

        On the loop, which has nothing else to do any more.
        """
        self._has_forgotten = True
        for key, request in self._untaken.items():
            if not self._is_known(key):
                try:
                    self._outbox.remove([request])
                except OSError as exc:  # the next application's sweep takes it
                    logger.warning("request stays in the outbox: attempt=%s error=%s", key, exc)

    async def _end_work(self) -> None:
        """Close within `_CLOSE_S`; then give up the blocking calls that keep it from ending.

        A cancelled upload waits for the end of such a call, however long that takes.

        Raises:
            TimeoutError: There were some.
        """
        closing = asyncio.create_task(self._close())
        await asyncio.wait([closing], timeout=_CLOSE_S)
        if closing.done():
            await closing
            return
        self._work.abandon()
        await asyncio.wait([closing], timeout=_CLOSE_S)
        closing.cancel()
        raise TimeoutError

    async def _close(self) -> None:
        for upload in self._uploads.values():
            upload.cancel()
        await asyncio.gather(*self._uploads.values(), return_exceptions=True)
        await self._work.close()

    async def _stop_when_idle(self) -> None:
        """Stop after a long time without a request: a zombie task may have started this sidecar."""
        while self._idle_ns > 0:
            await self._is_idle.wait()
            if self._work.follower.is_busy:
                self._asked_ns = self._clock.monotonic_ns()
            rest_ns = self._asked_ns + self._idle_ns - self._clock.monotonic_ns()
            if rest_ns <= 0:
                logger.info(
                    "the sidecar ends, as no request came: idle_ms=%d", self._idle_ns // 1_000_000
                )
                self._is_stopping.set()
                return
            await self._clock.sleep(rest_ns / 1_000_000_000)

    async def _drain(self) -> None:
        try:
            await asyncio.wait_for(self._is_idle.wait(), self._grace_s)
        except TimeoutError:
            logger.warning(
                "work is given up, the grace time is over: uploads=%d restores=%d",
                len(self._uploads),
                self._restores,
            )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user = peer_user(writer.get_extra_info("socket"))
        if user != os.geteuid() or self._connections >= _MAX_CONNECTIONS:
            logger.warning("connection refused: user=%d connections=%d", user, self._connections)
            writer.close()
            return
        self._connections += 1
        try:
            request = await self._in_time(self._receive(reader, writer))
            if request is not None:
                await self._send(writer, await self._answer(request, writer))
        except TimeoutError:
            logger.warning("a task sent nothing in time: timeout_s=%g", _SILENCE_S)
            writer.transport.abort()
        except (ConnectionError, EOFError):
            logger.warning("a task went away before its answer")
        finally:
            self._connections -= 1
            writer.close()

    async def _receive(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Request | None:
        """Return the request of a task that knows the job's key; None: it got its refusal."""
        try:
            if await self._is_of_the_job(reader, writer):
                return decode_request(await read_frame(reader))
            refused = Refused(error=NOT_ADMITTED, message="the task does not know the job's key")
        except CheckpointCorruptError as exc:
            refused = Refused(error="ValueError", message=f"not a request: {exc}")
        logger.warning("connection refused: %s", refused.message)
        writer.write(encode_frame(refused))
        await writer.drain()
        return None

    async def _is_of_the_job(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        hello = Hello(nonce=new_nonce())
        writer.write(encode_frame(hello))
        given = decode_greeting(await read_frame(reader, MAX_GREETING_BYTES))
        if not isinstance(given, Proof):
            return False
        if not is_proof(given.proof, self._key, TASK, hello.nonce, given.nonce):
            # The local directory may have been removed, and its key drawn anew.
            self._key = await self._work.executor.run(job_key, self._paths)
            if not is_proof(given.proof, self._key, TASK, hello.nonce, given.nonce):
                return False
        writer.write(
            encode_frame(Welcome(proof=proof(self._key, SIDECAR, hello.nonce, given.nonce)))
        )
        await writer.drain()
        return True

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        writer.write(encode_frame(answer))
        await self._in_time(writer.drain())

    async def _in_time(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Await what depends on the other end; TimeoutError after `_SILENCE_S`."""
        work = asyncio.ensure_future(coroutine)
        timer = asyncio.ensure_future(self._clock.sleep(_SILENCE_S))
        try:
            await asyncio.wait({work, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise TimeoutError
            return work.result()
        finally:
            work.cancel()
            timer.cancel()
            await asyncio.gather(work, timer, return_exceptions=True)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> Answer:
        self._asked_ns = self._clock.monotonic_ns()
        if isinstance(request, Stop) and request.epoch >= self._newest[0]:
            self._is_stopping.set()  # first: what comes may wait for calls that hang
        await self._take_epoch(request.epoch)
        refused = self._refusal(request)
        if refused is not None:
            return refused
        try:
            return await self._carry_out(request, writer)
        except StateBackupError as exc:
            logger.warning("request refused: error=%s", exc)
            return Refused(error=type(exc).__name__, message=message_of(exc))
        except OSError as exc:
            logger.exception("request failed")
            return Refused(error=type(exc).__name__, message=message_of(exc))

    async def _carry_out(self, request: Request, writer: asyncio.StreamWriter) -> Done:
        match request:
            case Stop():
                return Done()
            case SubmitVersion():
                return await self._take(request)
            case Restore():
                return await self._restore(request, writer)
            case Follow():
                return await self._follow(request)

    async def _take_epoch(self, epoch: int) -> None:
        """End the uploads of older drivers: nothing that they still bring about can count."""
        if epoch <= self._newest[0]:
            return
        self._newest = (epoch, 0)
        self._resolved.clear()
        self._work.follower.drop()
        for key, upload in self._uploads.items():
            if key[0] < epoch:
                upload.cancel()
        await self._work.executor.run(self._outbox.drop_older, epoch)

    def _refusal(self, request: Request) -> Refused | None:
        """Send a task to this sidecar's successor, or return None."""
        if request.epoch < self._newest[0]:
            msg = f"a newer driver has taken over: epoch={request.epoch} newest={self._newest[0]}"
            return Refused(error=StateBackupError.__name__, message=msg)
        if isinstance(request, Stop):
            return None
        if request.spec_digest != self._work.spec_digest:
            self._is_stopping.set()
            return Refused(error=STALE_SIDECAR, message="started with other settings; it ends")
        if self._is_stopping.is_set():
            return Refused(error=STOPPING_SIDECAR, message="the sidecar ends")
        return None

    async def _take(self, request: SubmitVersion) -> Done:
        """Acknowledge versions once all of them stand on disk; lower attempts end here.

        One that is repeated, since the driver cannot know that this sidecar lives, is
        acknowledged and nothing else.
        """
        key = (request.epoch, request.attempt)
        self._refuse_older(key)
        if key > self._newest:
            self._newest = key
            self._resolved.clear()
            for upload in self._uploads.values():
                upload.cancel()
        new = [each for each in request.each() if not self._is_known((*key, each.partition))]
        if not new:
            return Done()
        self._untaken |= {(*key, each.partition): each for each in new}
        fault_point("outbox.before_write")
        await self._work.executor.run(self._outbox.replace, new)
        fault_point("outbox.after_write")
        try:
            self._refuse_late(key)  # what has come while these waited for the disk
        except StateBackupError:
            await self._work.executor.run(self._outbox.remove, new)
            raise
        for each in new:
            self._untaken.pop((*key, each.partition), None)
            self._start_upload(each)
        return Done()

    def _refuse_late(self, key: tuple[int, int]) -> None:
        self._refuse_older(key)
        if self._has_forgotten:
            raise StateBackupError(f"the sidecar has ended: attempt={key}")

    def _refuse_older(self, key: tuple[int, int]) -> None:
        if key < self._newest:
            msg = f"a newer attempt was submitted: attempt={key} newest={self._newest}"
            raise StateBackupError(msg)

    def _start_upload(self, request: SubmitVersion) -> None:
        key = (request.epoch, request.attempt, request.partition)
        if self._is_known(key):
            return
        self._newest = max(self._newest, key[:2])
        self._is_idle.clear()
        superseded = [upload for old, upload in self._uploads.items() if old[:2] < key[:2]]
        upload = asyncio.create_task(self._upload(request, superseded))
        self._uploads[key] = upload
        upload.add_done_callback(lambda task: self._finished(key, task))

    def _finished(self, key: tuple[int, int, int], task: asyncio.Task[None]) -> None:
        self._uploads.pop(key, None)
        self._take_idle()
        if task.cancelled():
            return
        if task.exception() is not None:
            logger.error(
                "the result of an upload could not be stored: attempt=%s",
                key,
                exc_info=task.exception(),
            )
        elif key[:2] == self._newest:
            self._resolved.add(key)

    def _is_known(self, key: tuple[int, int, int]) -> bool:
        return key in self._uploads or key in self._resolved

    def _take_idle(self) -> None:
        if not self._uploads and self._restores == 0:
            self._asked_ns = self._clock.monotonic_ns()
            self._is_idle.set()

    async def _upload(self, request: SubmitVersion, superseded: list[asyncio.Task[None]]) -> None:
        # They were cancelled, but a task's backends take one commit at a time.
        await asyncio.gather(*superseded, return_exceptions=True)
        await self._work.upload(request)
        fault_point("outbox.before_remove")
        await self._work.executor.run(self._outbox.remove, [request])

    async def _restore(self, request: Restore, writer: asyncio.StreamWriter) -> Done:
        latest = Progress(done_bytes=0, total_bytes=0)

        def note(progress: Progress) -> None:
            nonlocal latest
            latest = progress

        self._restores += 1
        self._is_idle.clear()
        restore = asyncio.create_task(self._work.restore(request, note))
        try:
            while not (await asyncio.wait([restore], timeout=_PROGRESS_PERIOD_S))[0]:
                await self._send(writer, latest)
            return restore.result()
        finally:
            # The task that asked is gone, or this server ends: the fetch is of no use any more.
            restore.cancel()
            await asyncio.gather(restore, return_exceptions=True)
            self._restores -= 1
            self._take_idle()

    async def _follow(self, request: Follow) -> Done:
        """Begin what is asked for; wait a little for its end if the task does."""
        errors = self._work.follow(request)
        if not (request.is_awaited and errors):
            return Done(followed=self._work.follower.take_counts())
        done, waiting = await asyncio.wait(errors, timeout=_FOLLOW_S)
        failed = [error for error in (end.result() for end in done) if error]
        if failed or not waiting:
            self._work.follower.forget_ended(task.partition for task in request.tasks)
        if failed:
            msg = f"copies could not be made: count={len(failed)} first: {failed[0]}"
            raise StateBackupError(msg)
        return Done(followed=Followed(waiting=len(waiting)))


def _watch(pid: int, on_exit: Callable[[], None]) -> int | None:
    """Call ``on_exit`` once process ``pid`` has ended; return the descriptor to close."""
    if pid == NO_JVM:
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        on_exit()
        return None
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        on_exit()

    loop.add_reader(descriptor, ended)
    return descriptor
