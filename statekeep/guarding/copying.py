"""A copy of a location at one batch, made while the query runs, as a commit in a job log."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Final

from statekeep.backends.awaiting import run_all, run_to_early_end
from statekeep.backends.blob.index import MAX_IMAGE_FILES
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_reset import read_remains
from statekeep.checkpoint.log_session import LogSession, random_nonce
from statekeep.checkpoint.log_view import checkpoint_of
from statekeep.checkpoint.records import CommitRecord, QueryState
from statekeep.clock import Clock
from statekeep.commit.clean_up import CleanUp, TaskSweep
from statekeep.config.model import Config
from statekeep.config.redact import redact
from statekeep.errors import (
    CheckpointCorruptError,
    CheckpointLocationError,
    CommitFailedError,
    ConfigError,
    RetriableError,
    VersionDamagedError,
)
from statekeep.guarding.batch_files import BatchFiles, content_damage, files_of_batch
from statekeep.guarding.catalog import (
    CATALOG_STORE,
    FILES_STORE,
    TASK,
    Catalog,
    CopiedFile,
)
from statekeep.guarding.copy_base import Base, CopyJob, find_base
from statekeep.guarding.copy_commit import FetchedBatch, commit_copy
from statekeep.guarding.fetching import require_copies
from statekeep.guarding.listing import FoundFile
from statekeep.guarding.reporting import CopyReporter
from statekeep.guarding.spark_location import (
    Damage,
    DamageError,
    SparkLocation,
    newest_commit,
    query_id_at,
)
from statekeep.guarding.store_files import codec_of, rocksdb_files, stores_of
from statekeep.inspection.clean_up import Sweep, delete_leftovers
from statekeep.inspection.job import LogStorage, open_log_storage
from statekeep.inspection.state_copy import (
    UNSEEN,
    Uploads,
    create_resources,
    validate_backend,
)
from statekeep.stores.local_files import crc32_of
from statekeep.stores.version import image_path

logger = logging.getLogger(__name__)

_LOST: Final = "missing, and the newest copy has it"
_LISTINGS: Final = 10
"""Spark deletes files meanwhile: so often is the location listed anew before that is an error."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied."""

    position: int
    """Of the commit; that of the newest copy where there was nothing new."""
    batch: int
    new_files: int
    """Those that the copy before did not have."""
    new_bytes: int
    is_new: bool
    """False: the newest copy has this batch already."""


class OtherQueryError(CheckpointLocationError):
    """Raised when a location is of another query than the copies that were made of it."""


class _ChangedError(Exception):
    """Raised when Spark has deleted or replaced a file since the location was listed."""


@asynccontextmanager
async def open_copies(
    config: Config,
    uri: str,
    clock: Clock,
    *,
    owner: str,
    uploads: Uploads = UNSEEN,
    may_wait: bool = False,
) -> "AsyncGenerator[Copies]":
    """Take over the log of a location's copies. A process that makes copies of it meanwhile is fenced.

    Args:
        config: Names the job that holds the copies, and its backends.
        uri: Of the location, whose query may run.
        clock: For ids and durations.
        owner: Host and process, for people.
        uploads: Follows what is uploaded.
        may_wait: Whether the query may have committed nothing yet.

    Raises:
        CheckpointLocationError: It has not.
        ConfigError: A place cannot be reached, or the job is no job of copies.
        OtherQueryError: The location is of another query than the copies.
        TaskFencedError: Another one took the log over meanwhile.
        RetriableError: A service may answer later.
    """
    reporter = CopyReporter(config, clock)
    try:
        async with open_log_storage(config, clock, report=reporter.report) as storage:
            _require_backends_of_files(config, storage)
            commit = await storage.executor.run(newest_commit, uri)
            if commit is None and not may_wait:
                raise no_batch(uri)
            # A start waits for a backend out of reach less long than what reads the log would.
            await create_resources(storage.factories, storage.executor, clock)
            held = _backends_that_hold(await _newest_copy(storage, uri))
            for name, factory in storage.factories.items():
                if name not in held:  # a check uploads 5 MiB: not again at each run of a timer
                    await validate_backend(factory, storage.executor, clock)
            log = await LogSession.of_tool(storage.log, owner, reporter.report)
            if log.view.last_commit is not None:
                require_copies(log.view.last_commit.identity)
            async with reporter.session(storage, log):
                yield Copies(
                    uri, CopyJob(config, storage, log, uploads, reporter.report, random_nonce())
                )
    finally:
        reporter.close()


class Copies:
    """Makes the copies of one location, one after the other; made by `open_copies`."""

    def __init__(self, uri: str, job: CopyJob) -> None:
        self.uri = uri
        self.job = job
        self._shown: set[tuple[int, Damage]] = set()
        self._clean_up = CleanUp(
            job.log,
            [TASK],
            self._delete,
            job.config.checkpoint,
            job.storage.clock,
            report=job.report,
            subject=f"job={job.config.job.name}",
        )

    async def copy(self, directory: Path) -> Copied:
        """Copy the location at its newest sound batch, and release copies that are too old.

        Only files that the newest copy does not have are fetched and uploaded. Each is read once more
        from the local disk and compared with its checksums. Nothing counts before the commit record; a
        copy that fails leaves nothing that a later one does not clean up.

        Args:
            directory: An empty one, for the new files.

        Raises:
            CheckpointCorruptError: No batch after the newest copy is sound.
            OtherQueryError: The location is of another query than the copies.
            CheckpointLocationError: It is no location, or its query has committed nothing yet.
            ConfigError: The location cannot be reached.
            CommitFailedError: A backend did not take it.
            TaskFencedError: Another one makes copies now.
            RetriableError: A service may answer later, or the location changes too fast.
        """
        await self.job.log.check_fence()
        copied = await _Copying(self, directory).run()
        await self._clean_up.run()
        return copied

    async def newest_commit(self) -> tuple[str, FoundFile] | None:
        """Return the commit file of the location's newest batch; None: there is none.

        Raises:
            ConfigError: The location cannot be reached.
        """
        return await self.job.storage.executor.run(newest_commit, self.uri)

    def is_first_sight(self, number: int, damage: Damage) -> bool:
        """Return whether this damage of a batch has not been asked about before."""
        if (number, damage) in self._shown:
            return False
        self._shown.add((number, damage))
        return True

    async def _delete(self, sweep: TaskSweep) -> bool:
        commit = self.job.log.view.last_commit
        assert commit is not None  # noqa: S101 - clean-up follows a copy
        retained = {TASK: sweep.retained}
        own = Sweep(commit.identity, retained, sweep.closed)
        await delete_leftovers(self.job.storage, self.job.config, own)
        return True


class _Copying:
    """One copy."""

    def __init__(self, copies: Copies, directory: Path) -> None:
        self._copies = copies
        self._uri = copies.uri
        self._storage = copies.job.storage
        self._log = copies.job.log
        self._directory = directory
        self._image = directory / image_path(FILES_STORE)
        self._local: dict[str, CopiedFile] = {}
        """What lies in the image."""
        self._seen: set[Damage] = set()
        """By a listing before."""

    async def run(self) -> Copied:
        base = await find_base(self._copies.job, self._directory / "base")
        fetched = await self._fetch(base)
        if fetched is None:
            assert base is not None  # noqa: S101 - else all is new
            return Copied(base.position, base.commit.batch, 0, 0, is_new=False)
        try:
            position = await commit_copy(self._copies.job, self._directory, fetched, base)
        except CommitFailedError as exc:
            if base is None or not isinstance(exc.__cause__, VersionDamagedError):
                raise
            # The backend cannot build on the newest copy, such as after a change of the key.
            logger.warning("the newest copy cannot be used, all files are copied: error=%s", exc)
            base = replace(base, is_usable=False)
            fetched = await self._fetch(base)
            assert fetched is not None  # noqa: S101 - without a catalog all is new
            position = await commit_copy(self._copies.job, self._directory, fetched, base)
        return Copied(
            position,
            fetched.catalog.batch,
            fetched.new_files,
            fetched.new_bytes,
            is_new=True,
        )

    async def _fetch(self, base: Base | None) -> FetchedBatch | None:
        """Fetch what the newest sound batch needs; None where the newest copy has it all."""
        known: Mapping[str, CopiedFile] = {}
        if base is not None and base.catalog and base.is_usable and base.is_everywhere:
            known = base.catalog.files
        run = self._storage.executor.run
        for _ in range(_LISTINGS):
            with suppress(_ChangedError):
                location = await run(SparkLocation.open, self._uri)
                return await self._fetch_listed(location, base, known)
        raise RetriableError(
            "files of the location were deleted each time before they were copied: "
            f"location={redact(self._uri, is_secret=False)} listings={_LISTINGS}"
        )

    async def _fetch_listed(
        self, location: SparkLocation, base: Base | None, known: Mapping[str, CopiedFile]
    ) -> FetchedBatch | None:
        """Fetch from one listing; what turns out to be damaged is done without, if that can be."""
        query_id = await self._query_id(location)
        while True:
            look = await self._newest_sound(location, base)
            commit = await self._text(location, f"commits/{look.number}")
            # By the files, as a location that was rewound has other ones under the same numbers.
            is_known = all(_is_same(known.get(f), location.found[f]) for f in look.files)
            if is_known and base is not None and base.commit.batch == look.number:
                return None
            _require_few(look)
            held = {**known, **self._local}
            wanted = [f for f in look.files if not _is_same(held.get(f), location.found[f])]
            found = await self._fetch_files(location, look, wanted)
            damage = [one for one in found.values() if isinstance(one, Damage)]
            self._local |= {f: one for f, one in found.items() if isinstance(one, CopiedFile)}
            if not damage:
                break
            await self._require_unchanged(location, damage)
            location.damaged.update({one.file: one.what for one in damage})
        number, previous = look.number, location.batch_before(look.number)
        query = QueryState(
            query_id=query_id,
            metadata=await self._text(location, "metadata"),
            previous_offsets=None
            if previous is None
            else await self._text(location, f"offsets/{previous}"),
            offsets=await self._text(location, f"offsets/{number}"),
            commit=await self._text(location, f"commits/{number}"),
        )
        if query.commit != commit:
            raise _ChangedError
        after = (await self._storage.executor.run(SparkLocation.open, self._uri)).found
        if any(
            after.get(file, location.found[file]) != location.found[file] for file in look.files
        ):
            raise _ChangedError  # a file that only went was whole when it was fetched
        files = {file: self._local.get(file) or known[file] for file in look.files}
        is_known = all(known.get(file) == found for file, found in files.items())
        if is_known and base is not None and base.commit.batch == number:
            return None  # only the fetch has shown it, as the filesystem has no stamps
        new = [found.size for file, found in files.items() if file in self._local]
        if base is None and not stores_of(files):
            logger.warning(
                "no state is copied: location=%s: if the query has state, its directory is gone",
                location.location.shown,
            )
        catalog = Catalog(batch=number, query_id=query_id, files=files)
        return FetchedBatch(catalog, query, len(new), sum(new))

    async def _fetch_files(
        self, location: SparkLocation, look: BatchFiles, files: Sequence[str]
    ) -> Mapping[str, CopiedFile | Damage]:
        """Fetch files side by side; none of these calls goes on after one of them has failed.

        The next listing fetches the same files to the same places.
        """
        given_up = Event()
        fetches = (
            run_to_early_end(
                self._storage.executor,
                given_up.set,
                self._fetch_file,
                location,
                look,
                file,
                given_up,
            )
            for file in files
        )
        return dict(zip(files, await run_all(fetches), strict=True))

    async def _require_unchanged(self, location: SparkLocation, damage: Sequence[Damage]) -> None:
        """Make sure that files are damaged, and were not deleted or written again since the listing.

        Raises:
            _ChangedError: One was, or what Hadoop keeps beside it.
        """
        found = (await self._storage.executor.run(SparkLocation.open, self._uri)).found
        for one in damage:
            directory, slash, name = one.file.rpartition("/")
            for file in (one.file, f"{directory}{slash}.{name}.crc"):
                if found.get(file) != location.found.get(file):
                    raise _ChangedError

    async def _newest_sound(self, location: SparkLocation, base: Base | None) -> BatchFiles:
        """Return the newest batch that is sound, with a warning for each newer one.

        Raises:
            CheckpointCorruptError: Batches are damaged, and none is sound that is newer than the
                newest copy.
            CheckpointLocationError: The query has committed none.
        """
        shown = location.location.shown
        damaged: list[tuple[int, Damage]] = []
        committed = location.numbers("commits")
        for number in reversed(committed):
            # In a location that was rewound below the newest copy, other batches have its numbers.
            if damaged and base is not None and number <= base.commit.batch <= committed[-1]:
                break
            look = await files_of_batch(location, number, self._storage.executor)
            lost = [] if look.damage else self._lost(look, base)
            if not look.damage and not lost:
                return look
            first = (look.damage or lost)[0]
            is_read = first.file in location.damaged
            if not damaged and not is_read and first not in self._seen:
                self._seen.add(first)  # files may have gone because the query went on
                raise _ChangedError
            damaged.append((number, first))
            if self._copies.is_first_sight(number, first):
                logger.warning(
                    "batch is damaged and is not copied: location=%s batch=%d file=%s damage=%s",
                    shown,
                    number,
                    first.file,
                    first.what,
                )
        if not damaged:
            raise no_batch(self._uri)
        number, first = damaged[0]
        exc = CheckpointCorruptError(
            f"no batch is sound that has not been copied: location={shown} batch={number} "
            f"file={first.file} damage={first.what}"
        )
        exc.add_note("hint: `statekeep guard inspect` shows all damage; the copies are untouched")
        if first.what == _LOST:
            exc.add_note("hint: if the query has fewer partitions now, name new copies with --as")
        raise exc

    @staticmethod
    def _lost(look: BatchFiles, base: Base | None) -> list[Damage]:
        """Return the state stores that the newest copy has and a batch has not; a query loses none."""
        if base is None or base.catalog is None:
            return []
        stores = stores_of(base.catalog.files) - stores_of(look.files)
        return [Damage(store, _LOST) for store in sorted(stores)]

    async def _query_id(self, location: SparkLocation) -> str:
        """Return the id of the query.

        Raises:
            OtherQueryError: The copies are of another one.
            CheckpointCorruptError: It is missing or damaged.
        """
        try:
            query_id = await self._storage.executor.run(location.query_id)
        except DamageError as exc:
            shown = location.location.shown
            raise CheckpointCorruptError(
                f"the location cannot be copied: location={shown} file={exc.damage.file} "
                f"damage={exc.damage.what}"
            ) from exc
        _require_same_query(query_id, self._log.view.last_commit, location.location.shown)
        return query_id

    async def _text(self, location: SparkLocation, file: str) -> str:
        try:
            return (await self._storage.executor.run(location.read, file)).decode()
        except DamageError as exc:  # it was sound when the batch was looked at
            raise _ChangedError from exc

    def _fetch_file(
        self, location: SparkLocation, look: BatchFiles, file: str, given_up: Event
    ) -> CopiedFile | Damage:
        """Fetch a file and compare it with its checksums; blocks.

        Raises:
            _ChangedError: It went, or was replaced, since the location was listed; or another one did,
                before this was begun.
        """
        assert look.batch is not None  # noqa: S101 - it is sound
        if given_up.is_set():
            raise _ChangedError
        target, listed = self._image / file, location.found[file]
        try:
            location.fetch(file, target)
        except DamageError as exc:
            raise _ChangedError from exc
        if target.stat().st_size != listed.size:
            raise _ChangedError
        damage = content_damage(location, file, codec_of(look.batch), target)
        if damage is not None:
            return damage
        if file.startswith("state/") and file.endswith(
            ".zip"
        ):  # one that was replaced would name other files than were chosen
            directory = file.rpartition("/")[0]
            named = rocksdb_files(target.read_bytes(), file)
            if not {f"{directory}/{kind}/{name}" for kind, name, _ in named} <= set(look.files):
                raise _ChangedError
        return CopiedFile(listed.size, listed.stamp, crc32_of(target))


def no_batch(uri: str) -> CheckpointLocationError:
    """Return the error of a location in which no batch is committed, or which is none."""
    exc = CheckpointLocationError(
        f"the query has committed no batch: location={redact(uri, is_secret=False)}"
    )
    exc.add_note("hint: name the directory that the query was started with, as Spark does")
    return exc


def _require_backends_of_files(config: Config, storage: LogStorage) -> None:
    """Make sure that backends take files as they are, and build on those that they have.

    Raises:
        ConfigError: One reads the entries of stores, which a copy has not, or keeps nothing.
    """
    for store in (FILES_STORE, CATALOG_STORE):
        for name in config.store(store).backup_factories:
            properties = storage.factories[BackendName(name)].properties
            if not properties.needs_files or not properties.is_durable:
                raise ConfigError(
                    f"the backend cannot hold copies of a location: backend={name} store={store}",
                    key="stores.backup.factories",
                    hint="list only blob backends",
                )


async def _newest_copy(storage: LogStorage, uri: str) -> CommitRecord | None:
    """Return the newest copy of a location; None: there is none. Called before the log is taken over.

    Raises:
        ConfigError: It is of another job, whose driver would be fenced.
        OtherQueryError: The copies are of another query, whose guard would be.
    """
    if not await storage.log.is_there():
        return None
    for identity in (await read_remains(storage.log)).identities.values():
        require_copies(identity)
    reader = LogReader(storage.log)
    await reader.catch_up()
    query_id = await storage.executor.run(query_id_at, uri)
    if query_id is not None:
        _require_same_query(query_id, reader.view.last_commit, redact(uri, is_secret=False))
    return reader.view.last_commit


def _backends_that_hold(copy: CommitRecord | None) -> set[BackendName]:
    """Return the backends of a copy; none where that cannot be read."""
    try:
        checkpoint = None if copy is None else checkpoint_of(copy, TASK)
    except CheckpointCorruptError:
        return set()
    return set() if checkpoint is None else {*checkpoint.state_markers}


def _require_same_query(query_id: str, copied: CommitRecord | None, shown: str) -> None:
    """Make sure that a location is of the query of which a copy is.

    Raises:
        OtherQueryError: It is of another one.
    """
    before = None if copied is None or copied.query is None else copied.query.query_id
    if before in {None, query_id}:
        return
    error = OtherQueryError(
        f"the copies are of another query: location={shown} query_id={query_id} copied={before}"
    )
    error.add_note("hint: it is another location, or was begun anew; name other copies with --as")
    raise error


def _require_few(look: BatchFiles) -> None:
    """Make sure that a copy can hold the files of a batch, before they are fetched.

    Raises:
        ConfigError: It cannot.
    """
    if len(look.files) >= MAX_IMAGE_FILES:
        raise ConfigError(
            f"the location has more files than a copy can hold: batch={look.number} "
            f"files={len(look.files)} limit={MAX_IMAGE_FILES}",
            hint="fewer partitions, or larger files of RocksDB, make fewer of them",
        )


def _is_same(held: CopiedFile | None, listed: FoundFile) -> bool:
    if held is None or not held.stamp:
        return False
    return (held.size, held.stamp) == (listed.size, listed.stamp)
