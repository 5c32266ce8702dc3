"""Whether a copy can be restored: every byte by checksum, and all that Spark needs of its batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from statekeep.backends.awaiting import run_to_end
from statekeep.checkpoint.checkpoints import BackendName, StoreName
from statekeep.checkpoint.error_summary import message_of
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError, ConfigError
from statekeep.guarding.catalog import CATALOG_STORE, FILES_STORE, TASK
from statekeep.guarding.fetching import FetchedCopy, fetch_copy, require_copies
from statekeep.guarding.inspection import inspect_location
from statekeep.guarding.restoring import name_new_place
from statekeep.inspection.job import InspectedJob, OpenJob
from statekeep.stores.local_files import remove_tree


@dataclass(frozen=True, slots=True)
class VerifiedBackend:
    """What one backend has of a copy."""

    backend: BackendName
    files: int
    bytes: int
    damage: str
    """"" where it is sound."""


@dataclass(frozen=True, slots=True)
class VerifiedCopy:
    """A copy that was looked at in each backend that has it."""

    position: int
    batch: int
    backends: Sequence[VerifiedBackend]
    location: Path | None
    """The files as a checkpoint location; None where no backend has them sound."""

    @property
    def is_sound(self) -> bool:
        """Return whether each backend has it sound."""
        return not any(one.damage for one in self.backends)


@dataclass(frozen=True, slots=True)
class LoadedStore:
    """What Spark read of one store, or of one variable in it."""

    operator: int
    operator_name: str
    store: str
    variable: str
    """Of `transformWithState`; "" elsewhere."""
    rows: int


async def verify_copy(
    config: Config,
    open_job: OpenJob,
    clock: Clock,
    *,
    which: str | None,
    directory: Path,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> VerifiedCopy:
    """Fetch a copy from each backend that has it, and look at it as Spark's location.

    Every byte is compared with its checksum, and the batch is looked at by the rules of its state store
    provider, as `inspect_location` does. Nothing but the pin of a reader is written to the job.

    Args:
        config: Of the job that holds the copies.
        open_job: Opens it.
        clock: For retries.
        which: Position, checkpoint id or pin of a copy; None: the newest one.
        directory: An empty one, for all files of the copy; those of a sound one stay.
        on_bytes: Called with what was fetched since the last call.

    Raises:
        ConfigError: A backend cannot be reached, there is no such copy, or none of the settings'
            backends has it.
        RetriableError: A service may answer later.
    """
    async with open_job(config, clock) as job:
        position, commit = job.find_commit(which)
        require_copies(commit.identity)
        found: list[VerifiedBackend] = []
        sound: FetchedCopy | None = None
        for backend in _holders(job, config, position):
            target = directory / backend
            try:
                copy = await fetch_copy(
                    config, job, str(position), target, on_bytes=on_bytes, backend=backend
                )
                await _require_complete(copy, job)
            except (CheckpointCorruptError, BlobNotFoundError) as exc:
                found.append(VerifiedBackend(backend, 0, 0, message_of(exc)))
            else:
                sizes = await job.executor.run(_sizes, copy)
                found.append(VerifiedBackend(backend, len(sizes), sum(sizes), ""))
                if sound is None:
                    sound = copy
                    continue
            await run_to_end(job.executor, partial(_remove, target))  # room for the next one
        if sound is not None:
            uri = f"file:{sound.root}"
            await job.executor.run(name_new_place, sound.root, sound.files, uri)
        location = None if sound is None else sound.root
    return VerifiedCopy(position, commit.batch, found, location)


def _holders(job: InspectedJob, config: Config, position: int) -> list[BackendName]:
    """Return the backends of the settings that have a copy, in their order."""
    _, commit = job.find_commit(str(position))
    checkpoint = job.view.usable_checkpoint(commit, TASK)
    listed = config.store(FILES_STORE).backup_factories
    wanted: set[StoreName] = {FILES_STORE, CATALOG_STORE}
    names = [
        name
        for name in map(BackendName, listed)
        if checkpoint is not None and wanted <= checkpoint.markers_of(name).keys()
    ]
    if not names:
        raise ConfigError(
            "no backend of the settings has the copy: "
            f"commit={position} backends={','.join(listed)}",
            key="stores.backup.factories",
        )
    return names


async def _require_complete(copy: FetchedCopy, job: InspectedJob) -> None:
    """Look at the files of a copy as a location.

    Raises:
        CheckpointCorruptError: Something that Spark needs to go on after the batch is missing or damaged.
    """
    looked = await inspect_location(str(copy.root), job.executor, is_deep=True)
    if looked.newest_sound != copy.batch:
        damage = "; ".join(f"{one.file}: {one.what}" for _, one in looked.damage)
        raise CheckpointCorruptError(f"the batch is not complete: batch={copy.batch} {damage}")


def _sizes(copy: FetchedCopy) -> list[int]:
    return [(copy.root / file).stat().st_size for file in copy.files]


def _remove(directory: Path) -> None:
    if directory.exists():
        remove_tree(directory)
