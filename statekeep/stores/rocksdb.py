"""The store on disk: RocksDB by way of rocksdict, in raw mode (keys and values as they are)."""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.store_settings import CompactionStyle, Compression, StoreSettings
from statekeep.errors import BackendClosedError, StateBackupError, VersionDamagedError
from statekeep.stores.base import START_AGAIN, KeyValueStore
from statekeep.stores.delta import Change
from statekeep.stores.local_files import disk_error, explained_errors

_MIB: Final = 1 << 20
_WRITE_CHUNK: Final = 10_000
"""Keys per write call: rocksdict holds the interpreter lock for the whole call, about 1.5 us each."""
_READ_CHUNK: Final = 1_000
"""Keys per read call: it holds the lock as well, about 0.6 us each, and more for each of more keys."""
_RUNS_BEFORE_A_WAIT: Final = 64
"""Sorted runs from which on writes are slowed down and flushes wait: 40 at most were seen."""
_LOADED_RUNS: Final = 16
"""Sorted runs that a load leaves to be merged later."""
_LOADED_PARTS: Final = 16
"""Parts of a sorted run: 1 MiB each with the default buffer."""
_SIZES: Final = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
_COLUMN_FAMILY: Final = "default"
_DISK_REASONS: Final = {
    "No space left on device": "the local disk is full",
    "Disk quota exceeded": "the quota of the local disk is used up",
    "File too large": "a local file may not grow any more",
    "Permission denied": "the local directory is not writable",
    "Read-only file system": "the local directory is on a read-only file system",
}
_DAMAGE_SIGNS: Final = ("Corruption", "No such file", "does not exist", "bad magic", "Truncated")
_HOST_SIGNS: Final = ("Too many open files", "Cannot allocate memory", "Input/output error")
"""The host is at fault, and not the store."""
_READAHEAD_BYTES: Final = 256 << 10
"""For each file that a scan of everything merges. 2 MiB took a fifth longer."""
_RECORDS_BETWEEN_CHECKS: Final = 100_000
"""Of a check that reads every record: about 30 ms."""
CURRENT_FILE: Final = "CURRENT"
"""Names the manifest: every RocksDB image has it."""


@dataclass(frozen=True, slots=True)
class RocksDbOptions:
    """What may be tuned per store; applied anew each time a store is opened.

    An open store takes at most two write buffers, the cache, and what its iterators pin: 40 MiB
    with the defaults, and more while merges are far behind. Two buffers, so that writing goes on
    while one is flushed.
    """

    write_buffer_bytes: int = 16 * _MIB
    """Memory for writes before they become a file. A commit flushes anyway: more would not help."""
    block_cache_bytes: int = 8 * _MIB
    """Memory for blocks read, indexes and filters; the operating system caches files as well."""
    compaction_style: CompactionStyle = "universal"
    """How files are merged. New files are uploaded: 7.1 times the changed bytes with universal
    compaction, 22.6 with level (120 commits of 5,000 random keys on 1 GB)."""
    bloom_bits: int = 10
    """Bits per key of the filter that spares reads of absent keys, 0 for none: one false alarm in
    a hundred costs 1.25 bytes a key."""
    compression: Compression = "lz4"
    """Of files and so of uploads; lz4 costs next to no time."""

    @classmethod
    def of(cls, settings: StoreSettings) -> "RocksDbOptions":
        """Take the options out of a store's settings."""
        return cls(
            write_buffer_bytes=settings.write_buffer_bytes,
            block_cache_bytes=settings.block_cache_bytes,
            compaction_style=settings.compaction_style,
            bloom_bits=settings.bloom_bits,
            compression=settings.compression,
        )


class RocksDbStore(KeyValueStore):
    """A `KeyValueStore` in one RocksDB database.

    Writes go without a write-ahead log: a crash before the next image throws the uncommitted state
    away in any case, and every image is preceded by a flush. `checkpoint` flushes first because
    rocksdict lets other threads run during a flush, but not while it makes a checkpoint.

    One that is opened to be loaded takes writes as they come and leaves the rest to threads of
    RocksDB: buffers are sorted when they are flushed, and files are merged where they become many.
    It takes at most three write buffers and the cache, 56 MiB with the defaults. Its content is that
    of any other; but a `get` reads whole buffers, and a `scan` sorts them, unless it was flushed.

    Never opened before a fork and used after it: RocksDB's threads do not survive one.
    """

    def __init__(
        self,
        name: StoreName,
        directory: Path,
        options: RocksDbOptions | None = None,
        *,
        is_new: bool,
        is_to_load: bool = False,
        on_damage: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the database in ``directory``.

        Args:
            name: For errors.
            directory: Holds nothing but this store.
            options: None: the defaults.
            is_new: Nothing was ever stored: an empty database is created where there is none.
            is_to_load: Much is written before anything is read.
            on_damage: Called before each VersionDamagedError, on the thread that meets it.

        Raises:
            VersionDamagedError: What lies there is not whole, or there is nothing and ``is_new`` is
                False.
            ConfigError: The disk is full or not writable.
            StateBackupError: The directory is open already, here or in another process.
        """
        super().__init__(name)
        self._directory = directory
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._on_damage = on_damage
        self._write_options = WriteOptions()
        # rocksdict declares this property of its native class as a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]  # pyright: ignore[reportAttributeAccessIssue]
        with explained_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        engine_options = _engine_options(options or RocksDbOptions())
        engine_options.create_if_missing(create_if_missing=is_new)
        if is_to_load:
            _prepare_to_load(engine_options, (options or RocksDbOptions()).write_buffer_bytes)
        try:
            # Without column_families the options of an existing database are those on its disk.
            self._open_db: Rdict | None = Rdict(
                str(directory), engine_options, column_families={_COLUMN_FAMILY: engine_options}
            )
        except StateBackupError:
            raise
        except Exception as exc:
            raise self._explain(exc, "cannot open store") from exc

    @override
    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except StateBackupError:
            raise
        except Exception as exc:
            raise self._explain(exc, "cannot read store") from exc
        return value

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        db = self._db
        found: list[bytes | None] = []
        try:
            for at in range(0, len(keys), _READ_CHUNK):
                found += db.get(list(keys[at : at + _READ_CHUNK])) or ()
        except StateBackupError:
            raise
        except Exception as exc:
            raise self._explain(exc, "cannot read store") from exc
        return found

    @override
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self.load(changes.items())

    @override
    def load(self, records: Iterable[Change]) -> None:
        db = self._db
        left = iter(records)
        try:
            while True:
                batch = WriteBatch(raw_mode=True)
                put, delete = batch.put, batch.delete
                for key, value in islice(left, _WRITE_CHUNK):
                    if value is None:
                        delete(key)
                    else:
                        put(key, value)
                if batch.is_empty():
                    return
                db.write(batch, self._write_options)
        except StateBackupError:
            raise
        except Exception as exc:
            raise self._explain(exc, "cannot write store") from exc

    @override
    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        # One of everything reads ahead, past the cache: two thirds of the time; one of a few entries would read
        # far beyond them.
        entries = self._db.iter() if prefix else self._db.iter(_whole_scan())
        scan = _Scan(entries, prefix, self._explain)
        self._scans.add(scan)
        return scan

    @override
    def flush(self, *, is_awaited: bool = True) -> None:
        try:
            self._db.flush(is_awaited)
        except StateBackupError:
            raise
        except Exception as exc:
            raise self._explain(exc, "cannot flush store") from exc

    @override
    def size_bytes(self) -> int:
        return sum(self._db.property_int_value(name) or 0 for name in _SIZES)

    @override
    def checkpoint(self, directory: Path) -> None:
        db = self._db
        with explained_errors(directory):
            directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            db.flush()
            # Where files of level 0 pile up, a checkpoint waits for their compaction and holds the
            # interpreter lock meanwhile; a second flush, of nothing, waits without it.
            db.flush()
            self._check_files()
            Checkpoint(db).create_checkpoint(str(directory))
        except StateBackupError:
            raise
        except Exception as exc:
            raise self._explain(exc, "cannot write an image of the store") from exc

    @override
    def close(self) -> None:
        if self._open_db is None:
            return
        # An iterator keeps the database open and its lock taken, whatever close says.
        for scan in list(self._scans):
            scan.release()
        db, self._open_db = self._open_db, None
        try:
            db.close()
        except StateBackupError:
            raise
        except Exception as exc:
            raise self._explain(exc, "cannot close store") from exc

    @property
    def _db(self) -> Rdict:
        if self._open_db is None:
            msg = f"store is closed: store={self.name} directory={self._directory}"
            raise BackendClosedError(msg)
        return self._open_db

    def _check_files(self) -> None:
        """Raise VersionDamagedError where anything but a file has the name of one.

        RocksDB would open a pipe and wait without end, with the interpreter lock held.
        """
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    raise self._noted(
                        VersionDamagedError(
                            "store has an entry that is not a file:"
                            f" store={self.name} path={entry.path}"
                        )
                    )

    def _explain(self, exc: Exception, what: str) -> StateBackupError:
        return self._noted(_explained(exc, self.name, self._directory, what))

    def _noted(self, error: StateBackupError) -> StateBackupError:
        """Return an error, after what has to be done about damage."""
        if isinstance(error, VersionDamagedError):
            error.add_note(START_AGAIN)
            self._on_damage()
        return error


class _Scan(Iterator[tuple[bytes, bytes]]):
    """Walks over the entries of a prefix as they were when the scan began.

    Not `Rdict.items`, which ends without an error at a damaged block.
    """

    def __init__(
        self,
        entries: RdictIter,
        prefix: bytes,
        explain: Callable[[Exception, str], StateBackupError],
    ) -> None:
        self._explain = explain
        self._prefix = prefix
        self._entries: RdictIter | None = entries
        entries.seek(prefix)

    @override
    def __next__(self) -> tuple[bytes, bytes]:
        entries = self._entries
        if entries is None:
            raise BackendClosedError("store was closed while it was scanned")
        if not entries.valid():
            self._check_end(entries)
            raise StopIteration
        key: bytes = entries.key()
        if not key.startswith(self._prefix):
            raise StopIteration
        value: bytes = entries.value()
        entries.next()
        return key, value

    def release(self) -> None:
        self._entries = None

    def _check_end(self, entries: RdictIter) -> None:
        try:
            entries.status()
        except StateBackupError:
            raise
        except Exception as exc:
            raise self._explain(exc, "cannot scan store") from exc


def check_rocksdb_image(
    name: StoreName, directory: Path, *, is_deep: bool, is_cancelled: threading.Event
) -> None:
    """Open an image for reading, and compare its files with its manifest.

    RocksDB itself compares the existence and the size of each SST file with the manifest, and the
    checksums of the manifest's own records. It does not notice a manifest that ends too early, which
    describes an older or an empty state: then files are left over that it does not list. Nor does it
    read data blocks at open, nor any block of most files where there are many. A deep check reads each
    record once, which compares the checksum of each block. For 100 MB that takes 250 ms of a
    processor with values of 100 bytes and 60 ms with values of 1,000; the rest takes 3 ms.

    Args:
        name: For errors.
        directory: A private copy of the image: a small file is rewritten.
        is_deep: Read every record.
        is_cancelled: Ends a deep check soon.

    Raises:
        VersionDamagedError: It cannot be opened or read, or its manifest is not whole.
        ConfigError: The disk is full or not writable.
    """
    if not (directory / CURRENT_FILE).is_file():  # an open would write into the directory first
        msg = (
            f"image of a store lacks a file: store={name} directory={directory} file={CURRENT_FILE}"
        )
        raise VersionDamagedError(msg)
    options = _engine_options(RocksDbOptions(block_cache_bytes=0))
    try:
        db = Rdict(
            str(directory),
            options,
            column_families={_COLUMN_FAMILY: options},
            access_type=AccessType.read_only(),
        )
        try:
            listed = {Path(file["name"].lstrip("/")).name for file in db.live_files()}
            if is_deep:
                _read_all(db, is_cancelled)
        finally:
            db.close()
    except StateBackupError:
        raise
    except Exception as exc:
        raise _explained(exc, name, directory, "cannot open image") from exc
    unlisted = {path.name for path in directory.glob("*.sst")} - listed
    if unlisted:
        msg = (
            f"manifest of a store's image does not list all of its files: store={name} "
            f"directory={directory} count={len(unlisted)} first={min(unlisted)}"
        )
        raise VersionDamagedError(msg)


def _whole_scan() -> ReadOptions:
    options = ReadOptions()
    options.set_readahead_size(_READAHEAD_BYTES)
    options.fill_cache(False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # noqa: FBT003 - its stub lacks the argument
    return options


def _read_all(db: Rdict, is_cancelled: threading.Event) -> None:
    entries = db.iter(_whole_scan())
    entries.seek_to_first()
    is_valid, go_on = entries.valid, entries.next
    count = 0
    try:
        while is_valid():
            go_on()
            count += 1
            if count % _RECORDS_BETWEEN_CHECKS == 0 and is_cancelled.is_set():
                return
        entries.status()
    finally:
        del entries, is_valid, go_on  # an iterator keeps the database open, whatever close says


def _explained(exc: Exception, name: StoreName, directory: Path, what: str) -> StateBackupError:
    """Classify an error of rocksdict, which has only one class, by its text."""
    text = str(exc)
    for sign, reason in _DISK_REASONS.items():
        if sign in text:
            return disk_error(reason, directory)
    where = f"store={name} directory={directory}"
    # RocksDB calls a file that it could not open for want of descriptors corrupt.
    if not any(sign in text for sign in _HOST_SIGNS) and any(s in text for s in _DAMAGE_SIGNS):
        return VersionDamagedError(f"store is damaged: {where}")
    return StateBackupError(f"{what}: {where}")


def _engine_options(options: RocksDbOptions) -> Options:
    table = BlockBasedOptions()
    if options.block_cache_bytes:
        table.set_block_cache(Cache(options.block_cache_bytes))
        # Otherwise indexes and filters lie beside the cache, and grow with the store.
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    else:
        table.disable_cache()
    if options.bloom_bits:
        table.set_bloom_filter(options.bloom_bits, block_based=False)
    engine = Options(raw_mode=True)
    engine.set_block_based_table_factory(table)
    engine.set_write_buffer_size(options.write_buffer_bytes)
    engine.set_max_write_buffer_number(2)
    engine.set_compaction_style(getattr(DBCompactionStyle, options.compaction_style)())
    engine.set_compression_type(getattr(DBCompressionType, options.compression)())
    # Two merges at once, of all stores of the process: while one rewrites a whole store, which takes 4 s for
    # 1 GB, the other keeps the number of files that commits make small. With one, a commit waited for the
    # end of the long one, as RocksDB flushes no buffer from 20 sorted runs on, its default (decision 0074).
    engine.set_max_background_jobs(3)
    engine.set_level_zero_slowdown_writes_trigger(_RUNS_BEFORE_A_WAIT)
    engine.set_level_zero_stop_writes_trigger(2 * _RUNS_BEFORE_A_WAIT)
    engine.set_max_open_files(256)
    # With its default of 16, each open starts so many threads, also for a store of two files: a fifth of
    # the processor time that it takes.
    engine.set_max_file_opening_threads(2)
    # Images are many and short-lived: no statistics, no history of logs, small manifests.
    engine.set_stats_dump_period_sec(0)
    engine.set_stats_persist_period_sec(0)
    engine.set_skip_stats_update_on_db_open(True)
    engine.set_keep_log_file_num(1)
    engine.set_manifest_preallocation_size(4096)
    return engine


def _prepare_to_load(engine: Options, run_bytes: int) -> None:
    """Make writes cheap; what is read meanwhile costs more."""
    # A list that is sorted at its flush: a record costs the writer a tenth of a sorted structure's.
    engine.set_memtable_factory(MemtableFactory.vector())
    engine.set_allow_concurrent_memtable_write(allow=False)
    # Sorted in parts that fit a processor's cache, then merged into one file: a seventh less work.
    engine.set_write_buffer_size(max(run_bytes // _LOADED_PARTS, 64 << 10))
    engine.set_min_write_buffer_number_to_merge(_LOADED_PARTS)
    engine.set_max_write_buffer_number(3 * _LOADED_PARTS)
    # A quarter of these may be flushes: two threads sort while the caller goes on.
    engine.set_max_background_jobs(8)
    # One flush after the other makes a sorted run. The store that is opened next merges them as it
    # likes; here only so many are merged that it is neither slowed down nor stopped by them.
    engine.set_level_zero_file_num_compaction_trigger(_LOADED_RUNS)
    engine.set_level_zero_slowdown_writes_trigger(2 * _LOADED_RUNS)
    engine.set_level_zero_stop_writes_trigger(2 * _LOADED_RUNS)
