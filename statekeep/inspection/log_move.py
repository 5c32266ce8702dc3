"""A job log that moves to another backend, record by record."""

from collections.abc import Mapping, Sequence

from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, MovedRecord, Record, decode_record
from statekeep.errors import CheckpointCorruptError, ConfigError, RetriableError

Records = Sequence[tuple[int, bytes]]
"""Positions, and what stands there."""


async def check_move(source: JobLog, target: JobLog, backend: str) -> None:
    """Make sure that `move_log` will not refuse; for callers that move several logs or none.

    Raises:
        ConfigError: There is no log, it has moved to a third place, another log is in the new one,
            or a backend cannot hold a log.
        CheckpointCorruptError: A record cannot be read.
        RetriableError: A service may answer later.
    """
    view = await _read_view(source, backend)
    await target.probe()
    if view.moved_to is None:
        await source.probe()
        _require_stale(await source.read(0), await target.read(0))


async def move_log(source: JobLog, target: JobLog, backend: str, *, owner: str) -> int:
    """Copy a stopped job's log to another backend, and leave word in the old one.

    The records keep their positions. A driver that still runs the job is fenced before the copy; the
    record `moved` of the old log then sends every later start to the new one, as long as its
    settings name the old one. Cut off half way it may be repeated, also after the job went on in
    the old place: until the record `moved` the old log is the one that counts. Of a log that has
    moved there already, what is missing is copied, unless the job went on in the new backend.

    Args:
        source: The log of a stopped job; closed by the caller.
        target: The log of the same scope in the other backend; closed by the caller.
        backend: Its name in the settings.
        owner: Host and process, for people.

    Returns:
        The records that were copied.

    Raises:
        ConfigError: Another log is there, or the same one, or the backend cannot hold one: the old
            log counts.
        TaskFencedError: The job was started meanwhile.
        RetriableError: A service may answer later.
    """
    await check_move(source, target, backend)
    if (await _read_view(source, backend)).moved_to is None:
        taken = await LogSession.of_tool(source, owner)
        records = await source.read(0)
        _require_apart(records, await target.read(0))
        await target.trim(records[0][0])
        await _copy(records, target)
        _require_whole(records, await target.read(0))
        await taken.append(MovedRecord(backend=backend))
    # Pins may be written by other processes until the log has moved.
    records = await source.read(0)
    return await _copy(_before_the_move(records), target)


async def _read_view(log: JobLog, backend: str) -> LogView:
    """Return what a log says, unless it has moved to another backend than this one."""
    reader = LogReader(log)
    if not await log.is_there() or not await reader.catch_up():
        raise ConfigError(
            "there is no log to move",
            key="job.name",
            hint="check job.name, job.log.backend and, in plain Python, --task",
        )
    if reader.view.moved_to != backend:
        reader.require_here()
    return reader.view


async def _copy(records: Records, target: JobLog) -> int:
    """Append what the target does not have, up to where it has gone on by itself."""
    there = dict(await target.read(0))
    for position, data in records:
        if position not in there:
            try:
                await target.append(position, data)
            except PositionTakenError:
                # By whom? An own try whose answer was lost is no reason to leave the rest out.
                there = dict(await target.read(position))
            else:
                continue
        if there.get(position) != data:
            break  # the job goes on in the new backend
    return len(records)


def _before_the_move(records: Records) -> Records:
    found: list[tuple[int, bytes]] = []
    for position, data in records:
        if isinstance(_decoded(position, data), MovedRecord):
            break
        found.append((position, data))
    return found


def _require_stale(records: Records, there: Records) -> None:
    """Make sure that the target holds nothing, or what an earlier try has copied.

    Raises:
        ConfigError: It is another log, or one that has gone on.
    """
    floor = records[0][0]
    _require_equal(dict(records), [(p, data) for p, data in there if p >= floor])
    uids = {record.identity.job_uid for record in _commits(records)}
    # What the source has dropped since cannot be compared any more: it says itself whose it is.
    for record in _commits([(p, data) for p, data in there if p < floor]):
        if record.identity.job_uid not in uids:
            raise _another_log(there[0][0])


def _require_equal(own: Mapping[int, bytes], there: Records) -> None:
    for position, data in there:
        if own.get(position) != data:
            raise _another_log(position)


def _require_whole(records: Records, there: Records) -> None:
    """Make sure that the target holds every record and no other.

    Raises:
        ConfigError: It holds another one.
        RetriableError: It lacks some.
    """
    _require_equal(dict(records), there)
    if missing := sorted(dict(records).keys() - dict(there).keys()):
        raise RetriableError(
            f"the copy of the log lacks records: first={missing[0]} count={len(missing)}"
        )


def _require_apart(records: Records, there: Records) -> None:
    """Make sure that the two are not one log under two names.

    Raises:
        ConfigError: What was written to the source just now stands in the target.
    """
    if records[-1] in there:
        raise ConfigError(
            "both backends have one location: the log would move to where it is",
            hint="give the other backend a uri of its own",
        )


def _commits(records: Records) -> list[CommitRecord]:
    decoded = (_decoded(position, data) for position, data in records)
    return [record for record in decoded if isinstance(record, CommitRecord)]


def _decoded(position: int, data: bytes) -> Record | None:
    """Read one record; None where it is damaged: it is copied as it is."""
    try:
        return decode_record(data, where=f"position={position}")
    except CheckpointCorruptError:
        return None


def _another_log(position: int) -> ConfigError:
    return ConfigError(
        f"there is another log in the new backend: position={position}", hint="name another backend"
    )
