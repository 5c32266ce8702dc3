"""Which files of a state store Spark reads to go on at a version, by the rules of its providers.

Everything here blocks, and reads only.

Source: Spark 4.3 ``HDFSBackedStateStoreProvider``, ``RocksDBFileManager``, ``RocksDB`` (lineage of
checkpoint format 2).
"""

import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from statekeep.backends.storage.locations import explained_missing_package
from statekeep.errors import CheckpointCorruptError, ConfigError
from statekeep.guarding.spark_location import Batch, Damage, DamageError, HadoopCheck, SparkLocation
from statekeep.inspection.spark_state import DEFAULT_STORE

PROVIDER_KEY: Final = "stateStore.providerClass"
CODEC_KEY: Final = "stateStore.compression.codec"
HDFS_PROVIDER: Final = "HDFSBackedStateStoreProvider"
ROCKSDB_PROVIDER: Final = "RocksDBStateStoreProvider"
_VERSIONED: Final = re.compile(r"(([1-9][0-9]{0,17})(?:_[0-9A-Za-z-]+)?)\.([a-z]+)")
_CHUNK_BYTES: Final = 1 << 20
_METADATA: Final = "metadata"
_LOG_HEAD: Final = b"v1\n"
"""The first line of what Spark's own sources write for a batch."""
_SOURCE_LOG: Final = re.compile(r"sources/[^/]+/[0-9]+(\.compact)?")
_ZIP_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    ValueError,
)
"""What `zipfile` raises for damaged archives in memory: a flipped bit is an unknown method, a password, ..."""


@dataclass(frozen=True, slots=True)
class StateStore:
    """One state store: what one task of one operator keeps under one name."""

    operator: int
    partition: int
    name: str

    @property
    def directory(self) -> str:
        """Return where its files lie in the location."""
        own = "" if self.name == DEFAULT_STORE else f"/{self.name}"
        return f"state/{self.operator}/{self.partition}{own}"


@dataclass(frozen=True, slots=True)
class NameParts:
    """The name of a file that holds one version of a store, or what a batch has changed in it."""

    version: int
    stem: str
    """The version, with an id of its own in checkpoint format 2."""
    ending: str


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """What Spark reads of a store."""

    files: Sequence[str]
    """Paths in the location."""
    avoided: Sequence[Damage] = ()
    """Damaged snapshots that an older one stands in for: only Spark 4.1 or later does without them."""


@dataclass(frozen=True, slots=True)
class _Forms:
    """How a provider calls its files."""

    base: str
    """The ending of whole states."""
    change: str
    """The ending of what one batch has changed."""


_FORMS: Final[Mapping[str, _Forms]] = {
    HDFS_PROVIDER: _Forms("snapshot", "delta"),
    ROCKSDB_PROVIDER: _Forms("zip", "changelog"),
}


def codec_of(batch: Batch) -> str:
    """Return what Spark compresses the files of state stores with, such as ``lz4``."""
    name = batch.setting(CODEC_KEY, "lz4").rpartition(".")[2].lower()
    return name.removesuffix("compressioncodec")


def provider_of(batch: Batch) -> str:
    """Return the class name of the provider, without its package."""
    return batch.setting(PROVIDER_KEY, HDFS_PROVIDER).rpartition(".")[2]


def files_of_store(location: SparkLocation, store: StateStore, batch: Batch) -> StoreFiles:
    """Return the files that give a store's state after a batch.

    Raises:
        DamageError: One is missing or damaged, and no older snapshot stands in for it.
        ConfigError: The location cannot be reached.
    """
    forms = _FORMS.get(provider_of(batch))
    if forms is None:
        raise DamageError(store.directory, f"state of another provider, {provider_of(batch)}")
    names = set(location.names(store.directory))
    if batch.state_ids and forms.change == "changelog" and codec_of(batch) != "lz4":
        raise ConfigError(
            f"state in checkpoint format 2 is read if lz4 compresses it: codec={codec_of(batch)}",
            hint="Spark's default is lz4; other codecs are no problem in format 1",
        )
    loading = _Loading(location, store, forms, names)
    version, partitions = batch.state_version, batch.state_ids.get(store.operator)
    if partitions is None:
        return loading.by_version(version)
    ids = partitions[store.partition] if store.partition < len(partitions) else ()
    stems = [f"{version}_{found}" for found in ids]
    for stem in stems:
        if {f"{stem}.{forms.base}", f"{stem}.{forms.change}"} & names:
            return loading.by_lineage(version, stem)
    # A join has an id for each of its stores, in an order that is not looked up here.
    stem = stems[0] if len(stems) == 1 else f"{version}_*"
    raise DamageError(f"{store.directory}/{stem}.*", "missing")


def stores_of(files: Iterable[str]) -> set[str]:
    """Return the directories of the state stores of which there are files."""
    found: set[str] = set()
    for file in files:
        directory, _, name = file.rpartition("/")
        if directory.startswith("state/") and parts_of_name(name):
            found.add(directory)
    return found


def parts_of_name(name: str) -> NameParts | None:
    """Return the parts of a file's name; None: it is not named by a version."""
    match = _VERSIONED.fullmatch(name)
    return None if match is None else NameParts(int(match[2]), match[1], match[3])


class _Loading:
    """The choice of files for one version of a store."""

    def __init__(
        self, location: SparkLocation, store: StateStore, forms: _Forms, names: set[str]
    ) -> None:
        self._location = location
        self._store = store
        self._forms = forms
        self._names = names

    def by_version(self, version: int) -> StoreFiles:
        """Choose in checkpoint format 1: the newest whole state, and each change since."""
        oldest = version
        while oldest > 1 and self._has(str(oldest), self._forms.change):
            oldest -= 1
        stems = [str(number) for number in range(oldest, version + 1)]
        return self._choose(stems, starts_empty=self._has("1", self._forms.change) and oldest == 1)

    def by_lineage(self, version: int, stem: str) -> StoreFiles:
        """Choose in checkpoint format 2: each change names those it builds on."""
        if not self._has(stem, self._forms.change):
            return self._choose([stem], starts_empty=False)
        try:
            lineage = self._lineage(f"{stem}.{self._forms.change}")
        except DamageError:
            if not self._has(stem, self._forms.base):
                raise
            lineage = []  # the whole state needs none
        numbers = [number for number, _ in lineage]
        if numbers and numbers != list(range(version - len(numbers), version)):
            raise DamageError(self._path(f"{stem}.{self._forms.change}"), "its lineage has a gap")
        stems = [*(f"{number}_{found}" for number, found in lineage), stem]
        return self._choose(stems, starts_empty=(numbers or [version])[0] == 1)

    def _choose(self, stems: Sequence[str], *, starts_empty: bool) -> StoreFiles:
        """Return the newest whole state that is sound, with the changes after it.

        Args:
            stems: Names without endings, of consecutive versions.
            starts_empty: Whether the changes begin with the first batch.
        """
        avoided: list[Damage] = []
        for at in reversed(range(len(stems))):
            if self._has(stems[at], self._forms.base):
                name = f"{stems[at]}.{self._forms.base}"
                try:
                    return StoreFiles([*self._base(name), *self._changes(stems[at + 1 :])], avoided)
                except DamageError as exc:
                    avoided.append(exc.damage)
        if avoided and not starts_empty:
            raise DamageError(avoided[0].file, avoided[0].what)
        if starts_empty:
            return StoreFiles(self._changes(stems), avoided)
        if self._has(stems[0], self._forms.change):
            raise DamageError(self._path(f"{stems[0]}.{self._forms.base}"), "missing")
        raise self._missing(stems[0])

    def _base(self, name: str) -> list[str]:
        own, path = self._with_checksum(name), self._path(name)
        if self._forms.base != "zip":
            return own
        needed: list[str] = []
        for kind, found, size in rocksdb_files(self._location.read(path), path):
            needed.append(self._path(f"{kind}/{found}"))
            self._location.require(needed[-1], size)
        return [*own, *needed]

    def _changes(self, stems: Sequence[str]) -> list[str]:
        for stem in reversed(stems):
            if not self._has(stem, self._forms.change):
                raise self._missing(stem)
        return [p for s in stems for p in self._with_checksum(f"{s}.{self._forms.change}")]

    def _has(self, stem: str, ending: str) -> bool:
        return f"{stem}.{ending}" in self._names

    def _missing(self, stem: str) -> DamageError:
        """Return the error of a version without files; RocksDB may write whole states alone."""
        has_changes = any(name.endswith(f".{self._forms.change}") for name in self._names)
        ending = self._forms.change if has_changes else self._forms.base
        return DamageError(self._path(f"{stem}.{ending}"), "missing")

    def _with_checksum(self, name: str) -> list[str]:
        """Return a file and, where Spark has put one beside it, its checksum file.

        Raises:
            DamageError: One of them is damaged.
        """
        paths = [self._path(found) for found in (name, f"{name}.crc") if found in self._names]
        for path in paths:
            self._location.require(path)
        return paths

    def _lineage(self, name: str) -> list[tuple[int, str]]:
        """Read which changes a change builds on, back to the newest whole state that was known."""
        path = self._path(name)
        self._location.require(path)
        with explained_missing_package("hdfs"):
            from statekeep.backends.hdfs.spark_files import BlockReader  # noqa: PLC0415
        try:
            with self._location.opened(path) as file:
                reader = BlockReader(file, path)
                head = reader.read(int.from_bytes(reader.read(2)))
                if head not in {b"v3", b"v4"}:
                    raise DamageError(path, "not a change of checkpoint format 2")
                text = reader.read(int.from_bytes(reader.read(2)))
            return [(int(e["version"]), str(e["checkpointUniqueId"])) for e in json.loads(text)]
        except (CheckpointCorruptError, ValueError, LookupError, TypeError) as exc:
            raise DamageError(path, "truncated, damaged, or not compressed by lz4") from exc

    def _path(self, name: str) -> str:
        return f"{self._store.directory}/{name}"


def rocksdb_files(data: bytes, path: str) -> list[tuple[str, str, int]]:
    """Return directory, name and size of each file that a snapshot of RocksDB names.

    Args:
        data: Of the zip.
        path: Named in errors.

    Raises:
        DamageError: It is no zip, or has not what Spark puts in.
    """
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            text = archive.read(_METADATA).decode()
        found = json.loads(text.partition("\n")[2])
        named = [("SSTs", entry, "dfsSstFileName") for entry in found["sstFiles"]]
        named += [("logs", entry, "dfsLogFileName") for entry in found.get("logFiles") or ()]
        return [(kind, str(e[key]), int(e["sizeBytes"])) for kind, e, key in named]
    except (*_ZIP_ERRORS, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise DamageError(path, "truncated or damaged") from exc


def check_content(
    location: SparkLocation, file: str, codec: str, local: Path | None = None
) -> None:
    """Read a whole file and compare it with the checksums that it has; some have none.

    On a local disk Hadoop keeps a checksum beside each file. Elsewhere only deltas, changelogs,
    snapshots and zips have checksums, within them; SST files are compared by size alone.

    Args:
        location: Where it lies.
        file: Its path there.
        codec: What Spark compresses the files of state stores with.
        local: A copy of it on this disk, to be read instead.

    Raises:
        DamageError: It is missing or damaged.
        ConfigError: The location cannot be reached.
    """
    location.require(file)
    is_state = file.startswith("state/")  # what a source has there of its own may have any name
    if is_state and f"{file}.crc" in location.found:
        _check_size(location, file)
    checksum = location.hadoop_checksum(file)
    with location.opened(file) if local is None else local.open("rb") as stream:
        if checksum is not None:
            check, data = HadoopCheck(file, checksum), stream.read(_CHUNK_BYTES)
            while data:
                following = stream.read(_CHUNK_BYTES)
                check.take(data, is_last=not following)
                data = following
        elif is_state and file.endswith(".zip"):
            data = stream.read()  # at once, so that no error below is one of the network
            try:
                with zipfile.ZipFile(BytesIO(data)) as archive:
                    broken = archive.testzip()
            except _ZIP_ERRORS as exc:
                raise DamageError(file, "truncated or damaged") from exc
            if broken is not None:
                raise DamageError(file, f"damaged: {broken} in it")
        elif is_state and codec == "lz4" and file.endswith((".delta", ".snapshot", ".changelog")):
            with explained_missing_package("hdfs"):
                from statekeep.backends.hdfs.spark_files import BlockReader  # noqa: PLC0415
            try:
                BlockReader(stream, file).read_to_end()
            except CheckpointCorruptError as exc:
                raise DamageError(file, "truncated or damaged") from exc
        elif is_state or _SOURCE_LOG.fullmatch(file):
            _check_text(stream, file)


def _check_text(stream: BinaryIO, file: str) -> None:
    """Find out whether a small file without a checksum was cut off, as far as its form shows it."""
    if file.startswith("state/"):
        if "/_metadata/schema" in file or "/_stateSchema/" in file:
            data = stream.read()
            if not data.startswith(b"\0\2v") or not data.endswith(b"}"):
                raise DamageError(file, "truncated or damaged")
        return
    head = stream.read(len(_LOG_HEAD))
    if head != _LOG_HEAD and not _LOG_HEAD.startswith(head):
        return  # a file of a source's own, in a form of its own
    lines = [line for line in stream.read().split(b"\n") if line]
    try:
        for line in lines:
            if line.startswith((b"{", b"[")):
                json.loads(line)
    except ValueError as exc:
        raise DamageError(file, "truncated or damaged") from exc
    if not lines:
        raise DamageError(file, "truncated")


def _check_size(location: SparkLocation, file: str) -> None:
    """Compare a file's size with that in the checksum file of checkpoint format 2."""
    try:
        size = int(json.loads(location.read(f"{file}.crc"))["mainFileSize"])
    except (ValueError, LookupError, TypeError) as exc:
        raise DamageError(f"{file}.crc", "truncated or damaged") from exc
    location.require(file, size)
