"""A copy, put back as a checkpoint location that the query goes on from."""

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped] # no types

from statekeep.backends.awaiting import run_all, run_to_early_end
from statekeep.checkpoint.error_summary import message_of
from statekeep.checkpoint.log_session import random_nonce
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import CheckpointCorruptError, CheckpointLocationError, ConfigError
from statekeep.guarding.batch_files import schema_below
from statekeep.guarding.fetching import fetch_copy
from statekeep.guarding.listing import list_files
from statekeep.inspection.job import OpenJob
from statekeep.inspection.location_files import (
    LocationFiles,
    explained_location_errors,
    open_location,
)

logger = logging.getLogger(__name__)

_METADATA: Final = "metadata"
"""Spark reads it before anything else, and fails if it is not what Spark writes."""


async def restore_location(
    config: Config,
    open_job: OpenJob,
    clock: Clock,
    *,
    which: str | None,
    target: str,
    directory: Path,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> int:
    """Put a copy into a location of its own and return its batch, after which the query goes on.

    The query keeps its id, so that sinks know what they have. What was written is removed again if
    the restore fails.

    Args:
        config: Of the job that holds the copies.
        open_job: Opens it.
        clock: For retries.
        which: Position, checkpoint id or pin of a copy; None: the newest one.
        target: Where there is nothing yet, as Spark names it.
        directory: An empty one, for all files of the copy.
        on_bytes: Called with what was fetched since the last call.

    Raises:
        CheckpointCorruptError: The copy is damaged, or BlobNotFoundError.
        CheckpointLocationError: There is something already.
        ConfigError: A place cannot be reached, or there is no such copy.
        RetriableError: A service may answer later.
    """
    new = open_location(target)
    async with open_job(config, clock) as job:
        run = job.executor.run
        await run(_require_empty, new)
        copy = await fetch_copy(config, job, which, directory, on_bytes=on_bytes)
        root, files = copy.root, copy.files
        await run(name_new_place, root, files, _uri_of(target, new))
        place = _Place(new)
        await run(place.take)
        try:
            others = [file for file in files if file != _METADATA]
            await run_all(
                run_to_early_end(job.executor, place.stop, place.put, root / file, file)
                for file in others
            )
            await run(place.finish, root / _METADATA)
        except BaseException:
            await run(place.clear)
            raise
    return copy.batch


def _require_empty(new: LocationFiles) -> None:
    with explained_location_errors(new):
        is_used = bool(list_files(new))
    if is_used:
        raise _in_use(new)


def _in_use(new: LocationFiles) -> CheckpointLocationError:
    exc = CheckpointLocationError(f"the new checkpoint location is in use: location={new.shown}")
    exc.add_note("hint: name another one, or delete it if an earlier try has left it")
    return exc


class _Place:
    """A location that is being written; used on one thread, but for `put`.

    Until it is finished its `metadata` is one that Spark refuses, so that no query begins in a part of
    it, also if the process is killed. It names the writer, of which two may have begun at once.
    """

    def __init__(self, new: LocationFiles) -> None:
        self._new = new
        self._claim = f"statekeep writes this location: {random_nonce()}".encode()
        self._written: dict[str, int] = {}
        """Files and their sizes."""
        self._is_stopped = False

    def stop(self) -> None:
        """Let no more files be written: what failed is about to be cleared."""
        self._is_stopped = True

    def take(self) -> None:
        """Claim the location.

        Raises:
            CheckpointLocationError: There is something in it now.
        """
        _require_empty(self._new)
        with explained_location_errors(self._new):
            self._new.files.makedirs(self._new.root, exist_ok=True)
            self._new.files.pipe_file(self._path(_METADATA), self._claim)
        self._written[_METADATA] = len(self._claim)
        with explained_location_errors(self._new):
            found = set(list_files(self._new))
        if found != {_METADATA}:
            self.clear()
            raise _in_use(self._new)
        self._require_own()

    def put(self, source: Path, file: str) -> None:
        """Write a file, unless that was stopped."""
        if self._is_stopped:
            return
        self._written[file] = source.stat().st_size
        with explained_location_errors(self._new):
            path = self._path(file)
            self._new.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._new.files.put_file(str(source), path)

    def finish(self, metadata: Path) -> None:
        """Let queries begin in the location; all of it is on disk before.

        Raises:
            CheckpointLocationError: Another one has written to it, or not all of it was written.
        """
        self._require_own()
        self._sync()
        with explained_location_errors(self._new):
            found = {file: listed.size for file, listed in list_files(self._new).items()}
        if found.keys() != self._written.keys():
            raise _in_use(self._new)
        if found != self._written:
            raise CheckpointLocationError(
                f"not all files could be written: location={self._new.shown}"
            )
        self.put(metadata, _METADATA)
        self._sync()

    def clear(self) -> None:
        """Remove what was written, unless the location is another one's; what cannot be removed stays.

        Its first file goes last, by which Spark refuses what is left.
        """
        try:
            with explained_location_errors(self._new):
                if not self._is_own():
                    return
                for file in reversed(self._written):
                    if self._new.files.exists(self._path(file)):
                        self._new.files.rm_file(self._path(file))
        except ConfigError as exc:  # what went wrong before it is the error to be shown
            logger.warning(
                "what was restored is left there, delete it: location=%s error=%s",
                self._new.shown,
                message_of(exc),
            )

    def _require_own(self) -> None:
        with explained_location_errors(self._new):
            is_own = self._is_own()
        if not is_own:
            raise _in_use(self._new)

    def _is_own(self) -> bool:
        try:
            return bool(self._new.files.cat_file(self._path(_METADATA)) == self._claim)
        except FileNotFoundError:
            return False

    def _sync(self) -> None:
        if isinstance(self._new.files, LocalFileSystem):
            os.sync()  # one call for files and directories

    def _path(self, file: str) -> str:
        return f"{self._new.root}/{file}"


def name_new_place(root: Path, files: Sequence[str], uri: str) -> None:
    """Let the descriptions of `transformWithState` name their schemas in the new location.

    Spark notes them by the whole URI: with the old one it would read them in the old location.
    """
    for file in files:
        operator, _, rest = file.removeprefix("state/").partition("/")
        if not rest.startswith("_metadata/v2/"):
            continue
        path = root / file
        try:
            head, _, text = path.read_text().partition("\n")
            noted = json.loads(text)
            for store in noted["stateStoreInfo"]:
                if "stateSchemaFilePaths" in store:
                    old = store["stateSchemaFilePaths"]
                    below = [schema_below(one, int(operator)) for one in old]
                    store["stateSchemaFilePaths"] = [f"{uri}/{schema}" for schema in below]
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise CheckpointCorruptError(f"the copy has a damaged file: file={file}") from exc
        path.write_text(f"{head}\n{json.dumps(noted, separators=(',', ':'))}")


def _uri_of(target: str, new: LocationFiles) -> str:
    """Return a location as Hadoop names it."""
    is_path = "://" not in target and not target.startswith(("file:", "hdfs:", "viewfs:"))
    return f"file:{new.root}" if is_path else target.rstrip("/")
