"""How a task talks to the sidecar of its executor, starting it if there is none."""

import fcntl
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from statekeep.errors import RetriableError, StateBackupError
from statekeep.spark.sidecar.launch import SidecarLock, has_ended, note_end, take_lock
from statekeep.spark.sidecar.paths import SidecarPaths, SidecarSpec
from statekeep.spark.sidecar.protocol import (
    MAX_GREETING_BYTES,
    NOT_ADMITTED,
    SIDECAR,
    STALE_SIDECAR,
    STOPPING_SIDECAR,
    TASK,
    Done,
    Hello,
    Progress,
    Proof,
    Refused,
    Request,
    Stop,
    Welcome,
    check_sidecar,
    decode_answer,
    decode_greeting,
    encode_frame,
    is_proof,
    job_key,
    new_nonce,
    proof,
    read_frame_from,
)
from statekeep.stores.local_files import private_opener
from statekeep.stores.locks import has_living_owner

logger = logging.getLogger(__name__)

_TRIES: Final = 3
"""So many sidecars in a row may die over one request: more will not do better."""
_START_TIMEOUT_S = 60.0
_CONNECT_PAUSE_S = 0.02
_READ_TIMEOUT_S = 120.0
"""A restore reports twice a second, a submission is answered after one write: silence is a fault."""
_LEAVE_TIMEOUT_S = 10.0
_SUCCESSOR_ROUNDS = 600
_SUCCESSOR_PAUSE_S = 0.1
_tick = threading.Event()
"""Never set: there is no event to wait for before the new process has its socket."""


class _SidecarDiedError(RetriableError):
    """Raised when the sidecar ended before its answer: its successor may be asked."""


class SidecarError(StateBackupError):
    """Raised when the sidecar refused a request.

    Attributes:
        kind: Name of the error class in the sidecar.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def ask(
    paths: SidecarPaths,
    spec: SidecarSpec,
    request: Request,
    on_progress: Callable[[Progress], None] | None = None,
) -> Done:
    """Send one request to the sidecar, starting it first if need be, and await its answer.

    Runs in a Spark task; blocking, for as long as the request itself takes. A sidecar
    that ends, or that was started with other settings, gets a minute to leave its directory. If one
    dies before its answer its successor is asked, a few times: any sidecar can take up a
    restore, and a version may be submitted twice.

    Raises:
        SidecarError: The sidecar refused: the fault is in the request, or in what it asks for.
        RetriableError: The sidecar cannot be started, does not leave, fell silent (it still has
            its directory, so there is no successor to ask), or died repeatedly.
    """
    request = msgspec.structs.replace(request, spec_digest=spec.digest)
    died: _SidecarDiedError | None = None
    for number in range(1, _TRIES + 1):
        try:
            return _ask_those_that_leave(paths, spec, request, on_progress)
        except _SidecarDiedError as exc:
            logger.warning("%s: request=%s try=%d", exc, type(request).__name__, number)
            died = exc
    error = RetriableError(f"sidecars die over one request: tries={_TRIES} {_log_of(paths)}")
    error.add_note(
        "hint: read the end of the log; if it is empty, look in the host's log for processes that"
        " were killed for lack of memory"
    )
    raise error from died


def _ask_those_that_leave(
    paths: SidecarPaths,
    spec: SidecarSpec,
    request: Request,
    on_progress: Callable[[Progress], None] | None,
) -> Done:
    """Ask until a sidecar answers that is not about to leave its directory to a successor."""
    last_answer = ""
    for _ in range(_SUCCESSOR_ROUNDS):
        answer = _ask_once(paths, spec, request, on_progress)
        if isinstance(answer, Done):
            return answer
        if answer.error not in {STALE_SIDECAR, STOPPING_SIDECAR}:
            raise SidecarError(answer.error, answer.message)
        last_answer = answer.message
        _tick.wait(_SUCCESSOR_PAUSE_S)
    msg = f"the sidecar does not leave: directory={paths.directory} answer={last_answer}"
    raise RetriableError(msg)


def ask_to_stop(paths: SidecarPaths, spec: SidecarSpec, epoch: int) -> None:
    """Ask the sidecar of a directory to end, if there is one, and wait until it has gone.

    None is started there for this driver session any more. One that still boots ends once it sees that:
    it is not waited for.

    Args:
        paths: Where it lives.
        spec: What it is started with.
        epoch: Of the driver that asks.

    Raises:
        SidecarError: It serves a newer driver by now.
        RetriableError: It fell silent, or has not gone after ten seconds: it ends by itself.
    """
    try:
        # First: who starts one looks for this mark under the lock, and the sidecar once it listens.
        note_end(paths, spec.session)
    except (StateBackupError, OSError) as exc:
        logger.warning("a task that outlives its query may start a sidecar: error=%s", exc)
    connection = _try_connect(paths.socket)
    if connection is None:
        return
    answer = _exchange(connection, paths, Stop(epoch=epoch), None)
    if isinstance(answer, Refused):
        raise SidecarError(answer.error, answer.message)
    waited = 0.0
    while paths.lock.exists():
        if waited > _LEAVE_TIMEOUT_S:
            msg = f"the sidecar still works: directory={paths.directory}"
            raise RetriableError(msg)
        _tick.wait(_CONNECT_PAUSE_S)
        waited += _CONNECT_PAUSE_S


def _ask_once(
    paths: SidecarPaths,
    spec: SidecarSpec,
    request: Request,
    on_progress: Callable[[Progress], None] | None,
) -> Done | Refused:
    return _exchange(_connect(paths, spec), paths, request, on_progress)


def _exchange(
    connection: socket.socket,
    paths: SidecarPaths,
    request: Request,
    on_progress: Callable[[Progress], None] | None,
) -> Done | Refused:
    with connection, connection.makefile("rb") as stream:
        key = job_key(paths)
        try:
            _greet(connection, stream, paths, key)
            connection.sendall(encode_frame(request))
            while True:
                answer = decode_answer(read_frame_from(stream))
                if isinstance(answer, Done | Refused):
                    return answer
                if on_progress is not None:
                    on_progress(answer)
        except TimeoutError as exc:
            msg = f"the sidecar did not answer: timeout_s={_READ_TIMEOUT_S:g} {_log_of(paths)}"
            raise RetriableError(msg) from exc
        except OSError as exc:
            msg = f"lost the sidecar before its answer: {_log_of(paths)}"
            raise _SidecarDiedError(msg) from exc
        except EOFError as exc:
            msg = f"the sidecar ended without an answer: {_log_of(paths)}"
            raise _SidecarDiedError(msg) from exc


def _greet(connection: socket.socket, stream: BinaryIO, paths: SidecarPaths, key: bytes) -> None:
    """Prove to the sidecar that this task is of its job, and have it prove the same."""
    hello = decode_greeting(read_frame_from(stream, MAX_GREETING_BYTES))
    if isinstance(hello, Hello):
        nonce = new_nonce()
        own = proof(key, TASK, hello.nonce, nonce)
        connection.sendall(encode_frame(Proof(nonce=nonce, proof=own)))
        welcome = decode_greeting(read_frame_from(stream, MAX_GREETING_BYTES))
        if isinstance(welcome, Refused):
            raise SidecarError(welcome.error, f"{welcome.message}: {_log_of(paths)}")
        if isinstance(welcome, Welcome) and is_proof(
            welcome.proof, key, SIDECAR, hello.nonce, nonce
        ):
            return
    msg = f"what listens there is no sidecar of this job: socket={paths.socket} {_log_of(paths)}"
    raise SidecarError(NOT_ADMITTED, msg)


def _log_of(paths: SidecarPaths) -> str:
    return f"host={socket.gethostname()} log={paths.log}"


def start_ahead(paths: SidecarPaths, spec: SidecarSpec) -> None:
    """Start the sidecar if there is none, and do not wait until it serves.

    So that the first request finds it ready. Whatever keeps it from starting is the error of that
    request, which tries again.
    """
    try:
        _launch(paths, spec)
    except (StateBackupError, OSError) as exc:
        logger.warning("the sidecar is not started ahead: error=%s", exc)


def _connect(paths: SidecarPaths, spec: SidecarSpec) -> socket.socket:
    _refuse_ended(paths, spec)
    connection = _try_connect(paths.socket)
    if connection is not None:
        return connection
    paths.prepare()
    waited, launched, status = 0.0, 0, 0
    with open(paths.start_lock, "w", opener=private_opener) as lock:
        # One starter at a time: the others find the socket once they get the lock.
        fcntl.flock(lock, fcntl.LOCK_EX)
        while waited < _START_TIMEOUT_S:
            connection = _try_connect(paths.socket)
            if connection is not None:
                return connection
            if launched < _TRIES:
                launcher = _launch(paths, spec)  # none while a sidecar boots, or leaves
                if launcher is not None:
                    launched, status = launched + 1, launcher.returncode
            elif not has_living_owner(paths.lock):
                break
            _tick.wait(_CONNECT_PAUSE_S)
            waited += _CONNECT_PAUSE_S
    msg = f"the sidecar does not start: log={paths.log} launcher_status={status}"
    raise RetriableError(msg)


def _try_connect(path: Path, timeout_s: float = _READ_TIMEOUT_S) -> socket.socket | None:
    """Connect to a sidecar; None if none listens.

    Raises:
        RetriableError: It takes no connection: it is asleep, and its queue is full.
        ConfigError: Another user listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(0)  # a blocking connect waits for room in the queue without end
    waited = 0.0
    while waited < timeout_s:
        try:
            connection.connect(str(path))
        except BlockingIOError:
            _tick.wait(_CONNECT_PAUSE_S)
            waited += _CONNECT_PAUSE_S
        except (FileNotFoundError, ConnectionRefusedError, PermissionError):
            break  # where this user may not look, no sidecar of its own listens
        else:
            try:
                check_sidecar(connection, path)
            except BaseException:
                connection.close()
                raise
            connection.settimeout(_READ_TIMEOUT_S)
            return connection
    connection.close()
    if waited < timeout_s:
        return None
    msg = f"the sidecar takes no connection: socket={path} waited_s={timeout_s:g}"
    raise RetriableError(msg)


def _launch(paths: SidecarPaths, spec: SidecarSpec) -> subprocess.CompletedProcess[bytes] | None:
    """Start a sidecar, which inherits the lock; None if another one holds the lock.

    Where it is used beside another starter, the lock decides.

    Raises:
        SidecarError: The driver session has ended, and Spark has not yet stopped this task of it.
    """
    paths.prepare()
    lock = take_lock(paths)
    if lock is None:
        return None
    try:
        _refuse_ended(paths, spec)
        paths.prepare()  # again, now that no sidecar that leaves may remove anything
        launcher = _spawn(paths, spec, lock)
    except BaseException:
        lock.leave()
        raise
    lock.pass_on()
    return launcher


def _refuse_ended(paths: SidecarPaths, spec: SidecarSpec) -> None:
    if has_ended(paths, spec.session):
        msg = f"the query of this task has ended: session={spec.session} sidecar={paths.directory}"
        raise SidecarError(StateBackupError.__name__, msg)


def python_path(spec: SidecarSpec) -> str:
    """Return the value of ``PYTHONPATH`` for a sidecar: what its executor imports, it imports too.

    What ``spark-submit`` has shipped lies elsewhere on each host. The driver's directories come after: in a
    local master they have modules of the user's that no task imports.
    """
    own: list[str] = []
    for path in sys.path:
        with suppress(FileNotFoundError):  # it is below a working directory that was removed
            own.append(str(Path(path).absolute()))  # the sidecar has another working directory
    return os.pathsep.join(dict.fromkeys([*own, *spec.python_path]))


def _spawn(
    paths: SidecarPaths, spec: SidecarSpec, lock: SidecarLock
) -> subprocess.CompletedProcess[bytes]:
    """Launch a sidecar of its own session; the launcher forks again and ends at once.

    Otherwise the sidecar would share the process group and the pipes of Spark's Python daemon,
    which would keep the executor's exit waiting for it. The settings go through a pipe, so that no
    secret is on disk or in the process list, whenever a process is killed.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(spec)}
    module, descriptor = "statekeep.spark.sidecar", lock.descriptor
    with open(paths.log, "ab", opener=private_opener) as log:
        return subprocess.run(  # noqa: S603 - our own module, by this interpreter
            [sys.executable, "-m", module, str(paths.directory), str(descriptor)],
            input=spec.encode(),
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
            pass_fds=[descriptor],
            check=False,
        )
