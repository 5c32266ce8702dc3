"""A job log that moves to another backend, record by record."""

from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.job_owner import JobOwner


async def move_log(job: InspectedJob, target: JobLog, backend: str, *, owner: str) -> int:
    """Copy a stopped job's log to another backend, and leave word in the old one.

    The records keep their positions. Whoever still runs the job is fenced before the copy; the last
    record of the old log then sends every later start to the new one, as long as its settings name
    the old one. Cut off half way it may be repeated: until that last record the old log is the one
    that counts.

    Args:
        job: Stopped.
        target: The log of the same scope in the other backend; closed by the caller.
        backend: Its name in the settings.
        owner: Host and process, for people.

    Returns:
        The records that were copied.

    Raises:
        ConfigError: Another log is there, or the place cannot hold one: the old log counts.
        TaskFencedError: The job was started meanwhile.
        RetriableError: A service may answer later.
    """
    await target.probe()
    await _require_same(job.log, target)
    taken = await JobOwner.take_over(job.log, owner)
    records = await job.log.read(0)
    await target.trim(records[0][0])
    for position, data in records:
        try:
            await target.append(position, data)
        except PositionTakenError:
            continue  # by an earlier try: it is equal, see above
    await _require_same(job.log, target)
    await taken.leave(backend)
    return len(records)


async def _require_same(source: JobLog, target: JobLog) -> None:
    """Make sure that the target holds nothing but what the source holds at the same positions.

    Raises:
        ConfigError: It is another log, or one that has gone on.
    """
    own = dict(await source.read(0))
    for position, data in await target.read(0):
        if own.get(position) != data:
            raise ConfigError(
                f"there is another log in the new place: position={position}",
                hint="name another backend; `statekeep reset` drops a log that is of no use",
            )
