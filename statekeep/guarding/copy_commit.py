"""One copy as a commit: uploaded, then recorded in the job log."""

import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import CheckpointId, CheckpointV2, VersionId
from statekeep.checkpoint.error_summary import summary_of
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.clock import Clock
from statekeep.errors import CommitFailedError, StateBackupError
from statekeep.events import CommitBegan, CommitDone, CommitFailed, Event, Report, TaskUploaded
from statekeep.guarding.catalog import CATALOG_FILE, CATALOG_STORE, FILES_STORE, TASK, Catalog
from statekeep.guarding.copy_base import Base, CopyJob
from statekeep.inspection.state_copy import CommitBackups, require_markers
from statekeep.inspection.task_restore import COPIES_OF_A_LOCATION
from statekeep.stores.local_files import explained_errors
from statekeep.stores.version import FileEntry, SealedVersion, SealManifest, image_path


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A batch of the location, as far as it was fetched."""

    catalog: Catalog
    query: QueryState
    new_files: int
    new_bytes: int


class _CommitReport:
    """Reports one copy as a commit."""

    def __init__(self, report: Report, clock: Clock, batch: int) -> None:
        self.checkpoint_id = CheckpointId.at(clock.time_ns())
        self._report = report
        self._clock = clock
        self._batch = batch
        self._began_ns = clock.monotonic_ns()
        self._uploaded = 0
        self._upload_ms = 0
        report(CommitBegan(self.checkpoint_id.serialize()))

    def take(self, event: Event) -> None:
        """Report what the upload tells."""
        if isinstance(event, TaskUploaded):
            self._uploaded, self._upload_ms = event.bytes, event.elapsed_ms
        self._report(event)

    def done(self, position: int) -> None:
        elapsed_ns = self._clock.monotonic_ns() - self._began_ns
        elapsed_ms = elapsed_ns // 1_000_000
        self._report(
            CommitDone(
                self._batch,
                self.checkpoint_id.serialize(),
                position,
                elapsed_ms=elapsed_ms,
                tasks_uploaded=1,
                bytes_uploaded=self._uploaded,
                upload_ms=self._upload_ms,
                record_ms=elapsed_ms - self._upload_ms,
                task_upload_ms=self._upload_ms,
                elapsed_ns=elapsed_ns,
                background_ns=elapsed_ns,
            )
        )

    def failed(self, error: Exception) -> None:
        step = error.step if isinstance(error, CommitFailedError) else "record"
        elapsed_ns = self._clock.monotonic_ns() - self._began_ns
        checkpoint_id = self.checkpoint_id.serialize()
        text = summary_of(error)
        self._report(CommitFailed(checkpoint_id, self._batch, step, text, elapsed_ns))


async def commit_copy(
    job: CopyJob, directory: Path, fetched: FetchedBatch, base: Base | None
) -> int:
    """Upload what was fetched and append the commit record; return its position.

    Nothing counts before that record.

    Args:
        job: Of the copies.
        directory: Has the new files, as the image of a version has them.
        fetched: The batch.
        base: The newest copy.

    Raises:
        CommitFailedError: A backend did not take it.
        TaskFencedError: Another one makes copies now.
        RetriableError: The log may answer later.
    """
    log, storage = job.log, job.storage
    identity = JobIdentity(
        job_uid=job.new_uid if base is None else base.commit.identity.job_uid,
        job_name=job.config.job.name,
        partitions=1,
        stores={MAIN_OPERATOR: [FILES_STORE, CATALOG_STORE]},
        settings=dict(COPIES_OF_A_LOCATION),
    )
    on = None if base is None else base.to_build_on(log)
    version = await storage.executor.run(_seal, directory, fetched.catalog, identity, on)
    told = _CommitReport(job.report, storage.clock, version.id.batch)
    try:
        versions = {str(TASK): str(version.id)}
        attempt = await log.begin_attempt(
            version.id.batch, told.checkpoint_id, versions, [TASK], None if base else identity
        )
        try:
            checkpoint = await _back_up(job, version, identity, on, attempt=attempt, told=told)
            record = CommitRecord(
                attempt_epoch=log.epoch,
                attempt=attempt,
                batch=version.id.batch,
                checkpoint_id=told.checkpoint_id.serialize(),
                identity=identity,
                checkpoints={TASK: msgspec.Raw(encode_checkpoint_v2(checkpoint))},
                versions=versions,
                query=fetched.query,
            )
            position = await log.append(record)
        except BaseException:
            with suppress(StateBackupError):  # then the next copy aborts it
                await log.close_attempt("the copy failed")
            raise
    except Exception as exc:
        told.failed(exc)
        raise
    told.done(position)
    return position


async def _back_up(
    job: CopyJob,
    version: SealedVersion,
    identity: JobIdentity,
    base: tuple[CheckpointV2, VersionId] | None,
    *,
    attempt: int,
    told: _CommitReport,
) -> CheckpointV2:
    """Upload a version."""
    stores = (FILES_STORE, CATALOG_STORE)
    backups = CommitBackups(
        factories=job.storage.factories,
        stores={store: job.config.store(store) for store in stores},
        epoch=job.log.epoch,
        attempt=attempt,
        checkpoint_id=told.checkpoint_id,
        executor=job.storage.executor,
        clock=job.storage.clock,
        uploads=job.uploads,
        report=told.take,
    )
    task = TaskIdentity(identity.job_name, MAIN_OPERATOR, TASK, job_uid=identity.job_uid)
    checkpoint = await backups.back_up(task, version, {}, base)
    require_markers(TASK, version, checkpoint, stores)
    return checkpoint


def _seal(
    directory: Path,
    catalog: Catalog,
    identity: JobIdentity,
    base: tuple[CheckpointV2, VersionId] | None,
) -> SealedVersion:
    """Make a version that names all files of the copy; only the new ones are in its image.

    An upload reads no file that its base has in the same size and with the same CRC32.
    """
    path, data = f"{image_path(CATALOG_STORE)}/{CATALOG_FILE}", catalog.encode()
    with explained_errors(directory):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    files = image_path(FILES_STORE)
    entries = [FileEntry(path, len(data), zlib.crc32(data))] + [
        FileEntry(f"{files}/{name}", found.size, found.crc32)
        for name, found in catalog.files.items()
    ]
    parent = None if base is None else base[1]
    manifest = SealManifest(
        version=VersionId(catalog.batch, random_nonce()),
        parent=parent,
        lineage=() if parent is None else (parent,),
        job_name=identity.job_name,
        operator=MAIN_OPERATOR,
        task_name=TASK,
        files=tuple(sorted(entries, key=lambda entry: entry.path)),
    )
    return SealedVersion(directory, manifest)
