"""Authenticating the job log and the tasks' checkpoints by the keys that the state is encrypted with.

What the log says is not secret, but it decides: which snapshot is restored, what is deleted. So as
soon as a backend of a job encrypts, every record of the log and every entry of the checkpoint store
is sealed, wherever it lies: HMAC-SHA256 by a secret that HKDF derives from the provider's key, over
what it is, whose it is, where it stands, and what stands before it.

An attacker so cannot forge a record, change one, move it to another position, job or task, or cut one out.
One who can write to the storage can still put back an *older whole* log, or remove the log:
`docs/how-to/encrypt.md` says what notices that.
"""

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.backends.encryption_keys import (
    OLDER_HINT,
    EncryptionKey,
    KeyProvider,
    is_before_end_of,
)
from statekeep.backends.frame_cipher import key_check, sealing_secret
from statekeep.backends.optional_powers import Encryption, Encrypts
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName, TaskName
from statekeep.checkpoint.framing import refused, sealed, sealed_payload
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.clock import Clock
from statekeep.errors import CheckpointCorruptError, KeyUnavailableError, UnknownFormatError

Factories = Mapping[BackendName, StateBackendFactory]


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is sealed, or was."""

    data: bytes
    """The frame: sealed by `Sealer.seal`, without its seal by `Sealer.open`."""
    previous: str
    link: str
    """What the next record has as ``previous``."""
    key_check: str
    """Identifies the key."""


class Sealer:
    """Seals and opens for one scope; every method but the constructor blocks, in a provider of keys."""

    def __init__(
        self,
        keys: Sequence[KeyProvider],
        scope: str,
        *,
        is_on: bool,
        accepts_plain: Callable[[], bool],
        executor: BlockingExecutor,
    ) -> None:
        """Take what is needed; no I/O.

        Args:
            keys: The first one's current key seals; all of them open.
            scope: Of the log, so of a job, or of one task.
            is_on: Whether what is new is sealed. False: what was sealed is still looked at.
            accepts_plain: Whether a log that begins with plain records is accepted.
            executor: For callers on an event loop.
        """
        self._keys = keys
        self._scope = scope
        self.is_on = is_on
        self.accepts_plain = accepts_plain
        self.executor = executor

    def seal(self, what: Sequence[str], data: bytes, previous: str = "") -> Sealed:
        """Return a sealed frame around ``data``.

        Args:
            what: What it is and where it stands; opening it takes the same value.
            data: A frame.
            previous: Link of the record before; "" for the first, and for what stands alone.

        Raises:
            KeyUnavailableError: There is no current key.
        """
        key = self._keys[0].current()
        seal = _Seal(key_id=key.id, key_check=key_check(key), previous=previous, mac="")
        seal = msgspec.structs.replace(seal, mac=self._mac(key, what, seal, data))
        return Sealed(
            sealed(_encoder.encode(seal) + b"\n" + data), previous, seal.mac, seal.key_check
        )

    def open(self, what: Sequence[str], data: bytes, *, where: str) -> Sealed | None:
        """Return what a sealed frame holds; None where it is not sealed.

        Args:
            what: It was sealed for.
            data: The frame.
            where: Named in errors.

        Raises:
            CheckpointCorruptError: It was sealed for something else, was changed, or is damaged.
            KeyUnavailableError: Its key is missing, or another one has its id.
            UnknownFormatError: A newer version of Statekeep wrote it.
        """
        try:
            payload = sealed_payload(data, where=where)
        except CheckpointCorruptError:
            if self.is_on:
                raise
            payload = None  # the decoder reports it, or does not need it
        if payload is None:
            return None
        head, _, inner = payload.partition(b"\n")
        try:
            seal = _decoder.decode(head)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise CheckpointCorruptError(f"a seal cannot be read: {where}") from exc
        key = self._find(seal, where)
        expected = self._mac(key, what, seal, inner)
        if not hmac.compare_digest(seal.mac.encode(), expected.encode()):  # text must be ASCII
            raise CheckpointCorruptError(
                f"a record is not the one that was written here: {where} key_id={key.id}"
            )
        return Sealed(inner, seal.previous, seal.mac, seal.key_check)

    def _find(self, seal: "_Seal", where: str) -> EncryptionKey:
        missing: KeyUnavailableError | None = None
        for keys in self._keys:
            try:
                key = keys.find(seal.key_id)
            except KeyUnavailableError as exc:
                missing = missing or exc
                continue
            if key_check(key) == seal.key_check:
                return key
        raise missing or KeyUnavailableError(
            f"another key has the id of the key of a record: key_id={seal.key_id} {where}",
            hint="each key needs an id of its own: give the old key its id back",
        )

    def _mac(self, key: EncryptionKey, what: Sequence[str], seal: "_Seal", data: bytes) -> str:
        # JSON has no bare line feed: where the names end and the data begin is beyond doubt.
        names = [*what, self._scope, seal.key_id, seal.key_check, seal.previous]
        text = _encoder.encode(names) + b"\n" + data
        return hmac.new(sealing_secret(key), text, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class _Mark:
    """What is remembered of one record."""

    position: int
    link: str = ""
    """"" where it was refused: the next one need not fit."""
    key_check: str = ""
    """Of the key that it is sealed by; "" where it is plain."""


class SealedJobLog(JobLog):
    """A `JobLog` whose records are sealed, each with the one before it.

    A record that is not authentic comes out as one that cannot be read (`refused`): the reader
    decides what follows, as with damage.

    The inner log is this one's own: `close` closes it.
    """

    def __init__(self, log: JobLog, sealer: Sealer) -> None:
        self._log = log
        self._sealer = sealer
        self._last: _Mark | None = None
        """The newest record that was seen."""
        self._newest_of: dict[str, int] = {}
        """The newest position that was sealed by each key, by its check; "" for plain records."""

    @override
    async def probe(self) -> None:
        await self._log.probe()

    @override
    async def append(self, position: int, data: bytes) -> None:
        if not self._sealer.is_on:
            await self._log.append(position, data)
            return
        if position > 0 and (self._last is None or self._last.position != position - 1):
            await self.read(position - 1)
        last = self._last
        previous = last.link if last is not None and last.position == position - 1 else ""
        run = self._sealer.executor.run
        made = await run(self._sealer.seal, _record(position), data, previous)
        await self._log.append(position, made.data)
        self._remember(_Mark(position, made.link, made.key_check))

    @override
    async def read(self, start: int, *, limit: int | None = None) -> Sequence[tuple[int, bytes]]:
        records = await self._log.read(start, limit=limit)
        opened = await self._sealer.executor.run(self._open_all, records, self._last)
        for mark, _ in opened:
            self._remember(mark)
        return [(mark.position, inner) for mark, inner in opened]

    @override
    async def read_left(self) -> Sequence[tuple[int, bytes]]:
        records = await self._log.read_left()
        opened = await self._sealer.executor.run(self._open_all, records, None)
        return [(mark.position, inner) for mark, inner in opened]

    @override
    async def read_at(self, positions: Collection[int]) -> Sequence[tuple[int, bytes]]:
        records = await self._log.read_at(positions)
        opened = await self._sealer.executor.run(self._open_all, records, None)
        return [(mark.position, inner) for mark, inner in opened]

    @override
    async def is_there(self) -> bool:
        return await self._log.is_there()

    @override
    async def read_floor(self) -> int:
        return await self._log.read_floor()

    @override
    async def trim(self, floor: int) -> None:
        await self._log.trim(floor)
        self._newest_of = {key: p for key, p in self._newest_of.items() if p >= floor}

    @property
    @override
    def is_trim_wanted(self) -> bool:
        # Then the old key may go, or the day until which plain records are read may pass.
        current = None if self._last is None else self._last.key_check
        return self._sealer.is_on and bool(self._newest_of.keys() - {current})

    @override
    async def close(self) -> None:
        await self._log.close()

    def _remember(self, mark: _Mark) -> None:
        if self._last is None or mark.position >= self._last.position:
            self._last = mark
        newest = self._newest_of.get(mark.key_check, mark.position)
        self._newest_of[mark.key_check] = max(newest, mark.position)

    def _open_all(
        self, records: Sequence[tuple[int, bytes]], seen: _Mark | None
    ) -> list[tuple[_Mark, bytes]]:
        """Open records one after the other; blocks."""
        found: list[tuple[_Mark, bytes]] = []
        before = seen
        for position, data in records:
            links = {mark.position: mark.link for mark in (seen, before) if mark is not None}
            try:
                before, inner = self._open(position, data, links)
            except UnknownFormatError:
                before, inner = _Mark(position), data  # the decoder reports it
            except CheckpointCorruptError as exc:
                reason = "; ".join([str(exc), *getattr(exc, "__notes__", ())])
                before, inner = _Mark(position), refused(reason)
            found.append((before, inner))
        return found

    def _open(self, position: int, data: bytes, links: Mapping[int, str]) -> tuple[_Mark, bytes]:
        """Return a record and what is to be remembered of it.

        Args:
            position: Where it stands.
            data: What stands there.
            links: Those that are known of records around it; "" of one that was refused.
        """
        where = f"position={position}"
        opened = self._sealer.open(_record(position), data, where=where)
        if opened is None:
            self._check_plain(where)
            mark, inner = _Mark(position, hashlib.sha256(data).hexdigest()), data
        else:
            mark, inner = _Mark(position, opened.link, opened.key_check), opened.data
            before = links.get(position - 1, "")
            if (before or position == 0) and opened.previous != before:
                raise CheckpointCorruptError(
                    f"a record of the log does not follow the one before it: {where}"
                )
        if links.get(position, "") not in {"", mark.link}:
            raise CheckpointCorruptError(
                f"a record of the log has changed since it was read: {where}"
            )
        return mark, inner

    def _check_plain(self, where: str) -> None:
        if self._sealer.is_on and not self._sealer.accepts_plain():
            error = CheckpointCorruptError(f"a record of the log is not authenticated: {where}")
            error.add_note(OLDER_HINT)
            raise error


class SealedCheckpointStore(CheckpointStore):
    """A `CheckpointStore` whose entries are sealed, each for its attempt and task.

    An entry that is not authentic comes out as one that cannot be read. Plain ones never are:
    an attempt that was open when encryption was switched on is aborted, and its batches run again.

    The inner store is this one's own: `close` closes it.
    """

    def __init__(self, store: CheckpointStore, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer

    @override
    async def write(self, attempt: str, task_name: TaskName, data: bytes) -> None:
        if self._sealer.is_on:
            run = self._sealer.executor.run
            data = (await run(self._sealer.seal, _entry(attempt, task_name), data)).data
        await self._store.write(attempt, task_name, data)

    @override
    async def write_all(self, attempt: str, entries: Mapping[TaskName, bytes]) -> None:
        if self._sealer.is_on:
            entries = await self._sealer.executor.run(self._seal_all, attempt, entries)
        await self._store.write_all(attempt, entries)

    @override
    async def read(
        self, attempt: str, *, known: Collection[TaskName] = ()
    ) -> Mapping[TaskName, bytes]:
        entries = await self._store.read(attempt, known=known)
        return await self._sealer.executor.run(self._open_all, attempt, entries)

    @override
    async def attempts(self) -> Collection[tuple[int, int]]:
        return await self._store.attempts()

    @override
    async def delete(self, attempt: str) -> None:
        await self._store.delete(attempt)

    @override
    async def delete_all(self, attempts: Collection[tuple[int, int]]) -> None:
        await self._store.delete_all(attempts)

    @override
    async def close(self) -> None:
        await self._store.close()

    def _seal_all(
        self, attempt: str, entries: Mapping[TaskName, bytes]
    ) -> Mapping[TaskName, bytes]:
        """Seal entries; blocks."""
        seal = self._sealer.seal
        return {task: seal(_entry(attempt, task), data).data for task, data in entries.items()}

    def _open_all(
        self, attempt: str, entries: Mapping[TaskName, bytes]
    ) -> Mapping[TaskName, bytes]:
        """Open entries; blocks."""
        return {task: self._open(attempt, task, data) for task, data in entries.items()}

    def _open(self, attempt: str, task: TaskName, data: bytes) -> bytes:
        where = f"attempt={attempt} task={task}"
        try:
            opened = self._sealer.open(_entry(attempt, task), data, where=where)
        except (CheckpointCorruptError, KeyUnavailableError) as exc:
            return refused(str(exc))
        except UnknownFormatError:
            return data  # the decoder reports it
        if opened is not None:
            return opened.data
        return refused(f"an entry is not authenticated: {where}") if self._sealer.is_on else data


def open_job_log(
    factories: Factories,
    backend: BackendName,
    scope: str,
    executor: BlockingExecutor,
    clock: Clock,
) -> JobLog:
    """Build the log of a scope, sealed if a backend of the job encrypts.

    Args:
        factories: All of the job, and the one that holds the log.
        backend: Holds the log.
        scope: See `statekeep.checkpoint.names`.
        executor: For blocking calls.
        clock: For retries, and for the day until which plain records are read.
    """
    log = factories[backend].job_log(scope, executor, clock)
    sealer = _sealer(factories, backend, scope, executor, clock)
    return log if sealer is None else SealedJobLog(log, sealer)


def open_checkpoint_store(
    factories: Factories,
    backend: BackendName,
    scope: str,
    executor: BlockingExecutor,
    clock: Clock,
) -> CheckpointStore:
    """Build the checkpoint store of a scope, as `open_job_log` builds the log."""
    store = factories[backend].checkpoint_store(scope, executor, clock)
    sealer = _sealer(factories, backend, scope, executor, clock)
    return store if sealer is None else SealedCheckpointStore(store, sealer)


async def outdated_markers(
    factories: Factories,
    markers: Mapping[BackendName, Mapping[StoreName, Collection[Marker]]],
    executor: BlockingExecutor,
) -> frozenset[Marker]:
    """Return the markers that `Encrypts.outdated` returns, of all backends."""
    found: set[Marker] = set()
    for backend, of_backend in markers.items():
        if backend not in factories:
            continue
        factory = factories[backend]
        if isinstance(factory, Encrypts):
            found.update(await factory.outdated(of_backend, executor))
    return frozenset(found)


def encryption_limits(factories: Iterable[StateBackendFactory], clock: Clock) -> tuple[str, ...]:
    """Return what is left open of a job that encrypts, for people: nothing if all is closed.

    Args:
        factories: Of all backends that keep state of the job.
        clock: Says whether the days until which plain state is read are over.
    """
    durable = [factory for factory in factories if factory.properties.is_durable]
    encrypting = {f.name: found for f in durable if (found := _encryption(f)) and found.is_on}
    if not encrypting:
        return ()
    limits = [
        "state is encrypted in some backends only. Anyone who can read this backend can read the state,"
        f" and anyone who can write to it can change what is restored: backend={factory.name}"
        f" encrypted={','.join(encrypting)}"
        for factory in durable
        if factory.name not in encrypting
    ]
    limits += [
        "data that is not encrypted, or of an older format, is still accepted. Anyone who can write to"
        f" the backend can replace the state: backend={name} until={found.plain_until}"
        " (take encryption.plain.until out once the job has committed)"
        for name, found in encrypting.items()
        if is_before_end_of(found.plain_until, clock)
    ]
    return tuple(limits)


def _encryption(factory: StateBackendFactory) -> Encryption | None:
    return factory.encryption() if isinstance(factory, Encrypts) else None


def _sealer(
    factories: Factories,
    backend: BackendName,
    scope: str,
    executor: BlockingExecutor,
    clock: Clock,
) -> Sealer | None:
    """Return what seals the log of a job; None where its settings name no keys.

    By the keys of the backend that holds it if that one encrypts, else of the first by name: every
    process of the job, and every tool with its settings, comes to the same.
    """
    names = sorted(factories, key=lambda name: (name != backend, name))
    found = [one for name in names if (one := _encryption(factories[name])) is not None]
    found.sort(key=lambda one: not one.is_on)
    if not found:
        return None
    return Sealer(
        [one.keys for one in found],
        scope,
        is_on=found[0].is_on,
        accepts_plain=partial(is_before_end_of, found[0].plain_until, clock),
        executor=executor,
    )


class _Seal(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    key_id: str
    key_check: str
    """Tells another key of the same id from damage."""
    previous: str
    """Link of the record before; "" for the first, and for an entry."""
    mac: str


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Seal)


def _record(position: int) -> Sequence[str]:
    return ("job-log", str(position))


def _entry(attempt: str, task_name: TaskName) -> Sequence[str]:
    return ("task-checkpoint", attempt, task_name)
