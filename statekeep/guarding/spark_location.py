"""What a query's checkpoint location holds: its files at one moment, and what Spark wrote into them.

Everything here blocks, and reads only.

Source: Spark 4.3 ``StreamExecution``, ``OffsetSeqLog``, ``CommitLog``, ``OperatorStateMetadata``.
"""

import re
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, Self, TypeVar

import msgspec

from statekeep.errors import (
    CheckpointLocationError,
    ConfigError,
    StateBackupError,
    UnknownFormatError,
)
from statekeep.guarding.listing import FoundFile, list_files
from statekeep.inspection.location_files import (
    LocationFiles,
    explained_location_errors,
    open_location,
)
from statekeep.inspection.spark_state import explained_full_disk

T = TypeVar("T")

_NEWEST_OFFSETS: Final = 2
_NAMED_OFFSETS: Final = 2
"""From this version on, each line of ``offsets`` begins with the name of its source."""
_NEWEST_COMMITS: Final = 3
_NO_PARTS: Final = frozenset({"", ".", ".."})
"""What no path of Spark's has between its slashes."""
_HADOOP_MAGIC: Final = b"crc\0"


class DamageError(StateBackupError):
    """Raised when a file of a location is missing or is not what Spark wrote; stays in this package."""

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"{what}: file={file}")
        self.damage = Damage(file, what)


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """One file that keeps Spark from going on at a batch."""

    file: str
    """Relative to the location."""
    what: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that the query has committed."""

    number: int
    format: int
    """Version of the commit file; 2 or more has `state_ids`."""
    settings: Mapping[str, str]
    """What Spark keeps for the life of the query."""
    state_ids: Mapping[int, Sequence[Sequence[str]]]
    """``{operator: ids of the stores of each partition}``; empty in checkpoint format 1."""
    source_offsets: Mapping[str, str]
    """Of each source, by the name of its directory, as Spark wrote it: ``-`` for none yet."""
    offsets_format: int
    """Version of the offsets file."""
    began_ms: int
    """When it was begun, by the clock of its driver; 0: Spark has not noted that."""

    @property
    def state_version(self) -> int:
        """Return the version that the batch left in each state store."""
        return self.number + 1

    def setting(self, key: str, default: str) -> str:
        """Return a setting below ``spark.sql.streaming``."""
        return str(self.settings.get(f"spark.sql.streaming.{key}", default))


class _Metadata(msgspec.Struct, frozen=True):
    id: str


class _Offsets(msgspec.Struct, frozen=True):
    conf: dict[str, str] = {}
    began_ms: int = msgspec.field(default=0, name="batchTimestampMs")


@dataclass(frozen=True, slots=True)
class _OffsetFile:
    format: int
    noted: _Offsets
    offsets: Mapping[str, str]
    """Of each source."""

    @property
    def names_sources(self) -> bool:
        return self.format >= _NAMED_OFFSETS


class _Commit(msgspec.Struct, frozen=True):
    state_ids: dict[int, list[list[str]]] | None = msgspec.field(
        default=None, name="stateUniqueIds"
    )


_metadata: Final = msgspec.json.Decoder(_Metadata)
_offsets: Final = msgspec.json.Decoder(_Offsets)
_commit: Final = msgspec.json.Decoder(_Commit)
_any_offset: Final = msgspec.json.Decoder[object]()


@dataclass(frozen=True, slots=True)
class SparkLocation:
    """A checkpoint location as it was listed once; Spark may add and delete files meanwhile."""

    uri: str
    location: LocationFiles
    found: Mapping[str, FoundFile]
    """Every file by its path relative to the location."""
    directories: Mapping[str, Sequence[str]]
    """``{directory: names}`` of the files right in it, without Hadoop's checksums."""
    damaged: dict[str, str] = field(default_factory=dict[str, str])
    """What is known to be wrong with the content of files; filled by who reads them."""

    @classmethod
    def open(cls, uri: str) -> Self:
        """List a location.

        Raises:
            ConfigError: It cannot be reached.
            CheckpointLocationError: It is not the location of a query.
        """
        location = open_location(uri)
        with explained_location_errors(location):
            found = _list_in_order(location)
        if not any(name.startswith(("offsets/", "commits/")) for name in found):
            exc = CheckpointLocationError(
                f"not the checkpoint location of a query: location={location.shown}"
            )
            exc.add_note("hint: name the directory that the query was started with, as Spark does")
            raise exc
        directories: dict[str, list[str]] = {}
        for path in found:
            directory, _, name = path.rpartition("/")
            if not name.startswith("."):
                directories.setdefault(directory, []).append(name)
        return cls(uri, location, found, directories)

    def names(self, directory: str) -> Sequence[str]:
        """Return the files right in a directory, without Hadoop's checksums, by name."""
        return self.directories.get(directory, ())

    def numbers(self, directory: str) -> list[int]:
        """Return the files right in a directory that have a number as their name, in order."""
        return sorted(int(name) for name in self.names(directory) if name.isdecimal())

    def below(self, directory: str) -> Iterator[str]:
        """Yield the paths of all files below a directory, without Hadoop's checksums."""
        for found, names in self.directories.items():
            if f"{found}/".startswith(f"{directory}/"):
                yield from (f"{found}/{name}" for name in names)

    def require(self, file: str, size: int | None = None) -> None:
        """Make sure that a file is there, is not known to be damaged, and has a size where one is known.

        Raises:
            DamageError: It has not.
        """
        found = self.found.get(file)
        if found is None:
            raise DamageError(file, "missing")
        if file in self.damaged:
            raise DamageError(file, self.damaged[file])
        if size is not None and found.size != size:
            raise DamageError(file, f"{found.size} bytes instead of {size}")
        # A source may have empty files of its own; Spark writes none.
        if size is None and found.size == 0 and not file.startswith("sources/"):
            raise DamageError(file, "empty")

    def read(self, file: str) -> bytes:
        """Return a small file, checked by Hadoop's checksum where there is one.

        Raises:
            DamageError: It is missing or damaged.
            ConfigError: The location cannot be reached.
        """
        self.require(file)
        data = self._bytes(file)
        checksum = self.hadoop_checksum(file)
        if checksum is not None:
            HadoopCheck(file, checksum).take(data, is_last=True)
        return data

    @contextmanager
    def opened(self, file: str) -> Generator[BinaryIO]:
        """Open a file to be read from its beginning.

        Raises:
            DamageError: It is missing.
            ConfigError: The location cannot be reached, here or later in the block.
        """
        with (
            self._explained_missing(file),
            explained_location_errors(self.location),
            self.location.files.open(self._path(file), "rb") as stream,
        ):
            yield stream

    def fetch(self, file: str, target: Path) -> None:
        """Copy a file to this disk.

        Raises:
            DamageError: It is missing.
            ConfigError: The location cannot be reached, or the local disk is full.
        """
        with explained_full_disk(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        with (
            self._explained_missing(file),
            explained_location_errors(self.location),
            explained_full_disk(target.parent),
        ):
            self.location.files.get_file(self._path(file), str(target))

    def hadoop_checksum(self, file: str) -> bytes | None:
        """Return what Hadoop keeps beside a file on a local disk; None: nothing."""
        directory, slash, name = file.rpartition("/")
        beside = f"{directory}{slash}.{name}.crc"
        if beside not in self.found:
            return None
        try:
            return self._bytes(beside)
        except DamageError:  # it went since it was listed
            return None

    def _bytes(self, file: str) -> bytes:
        with self._explained_missing(file), explained_location_errors(self.location):
            return bytes(self.location.files.cat_file(self._path(file)))

    @staticmethod
    @contextmanager
    def _explained_missing(file: str) -> Generator[None]:
        try:
            yield
        except ConfigError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                raise DamageError(file, "missing") from exc
            raise

    def _path(self, file: str) -> str:
        return f"{self.location.root}/{file}"

    def query_id(self) -> str:
        """Return the id of the query.

        Raises:
            DamageError: ``metadata`` is missing or damaged.
        """
        return _decoded(_metadata, self.read("metadata"), "metadata").id

    def batch_before(self, number: int) -> int | None:
        """Return the batch whose offsets Spark reads too, to go on after a batch; None: there was none.

        With asynchronous progress tracking, which no query with state has, batches are left out of
        ``offsets`` and ``commits`` alike.
        """
        before = number - 1
        has_files = {f"offsets/{before}", f"commits/{before}"} & self.found.keys()
        if number == 0 or has_files or any(self.below("state")):
            return before if number > 0 else None
        return max((n for n in self.numbers("offsets") if n < number), default=None)

    def batch(self, number: int) -> Batch:
        """Read the files that say what a committed batch was.

        Raises:
            DamageError: One is missing or damaged.
            UnknownFormatError: A newer Spark wrote it.
        """
        version, lines = self._log_file(f"commits/{number}", _NEWEST_COMMITS)
        commit = _decoded(_commit, lines[0] if lines else "", f"commits/{number}")
        own = self._offsets(number)
        previous = self.batch_before(number)
        if previous is not None:  # Spark reads it too, to know where the batch began
            before = self._offsets(previous)
            is_named = own.names_sources or before.names_sources
            if len(before.offsets) != len(own.offsets) and not is_named:
                what = f"{len(own.offsets)} sources, the batch before has {len(before.offsets)}"
                raise DamageError(f"offsets/{number}", what)
        return Batch(
            number,
            version,
            own.noted.conf,
            commit.state_ids or {},
            own.offsets,
            own.format,
            own.noted.began_ms,
        )

    def began_ms(self, number: int) -> int:
        """Return when a batch was begun, by the clock of its driver; 0: Spark has not noted that.

        Raises:
            DamageError: Its offsets cannot be read.
            UnknownFormatError: A newer Spark wrote them.
        """
        return self._offsets(number).noted.began_ms

    def open_batch(self) -> int | None:
        """Return the batch that was begun and is not committed; None: there is none."""
        newest = max(self.numbers("offsets"), default=-1)
        return newest if newest > max(self.numbers("commits"), default=-1) else None

    def check_offsets(self, number: int) -> None:
        """Make sure that the offsets of a batch can be read.

        Raises:
            DamageError: They cannot.
            UnknownFormatError: A newer Spark wrote them.
        """
        self._offsets(number)

    def _offsets(self, number: int) -> _OffsetFile:
        file = f"offsets/{number}"
        version, lines = self._log_file(file, _NEWEST_OFFSETS)
        if len(lines) < 2:  # noqa: PLR2004 - the settings, and one source at least
            raise DamageError(file, "truncated")
        is_map = version >= _NAMED_OFFSETS
        offsets: dict[str, str] = {}
        for at, line in enumerate(lines[1:]):
            source, colon, offset = line.partition(":") if is_map else (str(at), ":", line)
            if not colon:
                raise DamageError(file, "truncated")
            if offset.startswith(("{", "[")):  # a source may have offsets that are no JSON
                _decoded(_any_offset, offset, file)
            offsets[source] = offset
        return _OffsetFile(version, _decoded(_offsets, lines[0], file), offsets)

    def _log_file(self, file: str, newest: int) -> tuple[int, list[str]]:
        """Return the version of a file of ``offsets`` or ``commits``, and its other lines."""
        try:
            head, *lines = self.read(file).decode().split("\n")
        except UnicodeDecodeError as exc:
            raise DamageError(file, "truncated or damaged") from exc
        version = re.fullmatch(r"v([0-9]{1,9})", head)
        if version is None:
            raise DamageError(file, "no version in the first line")
        if int(version[1]) > newest:
            shown = f"{self.location.shown}/{file}"
            raise UnknownFormatError(f"file of a newer Spark: file={shown} version={version[1]}")
        return int(version[1]), [line for line in lines if line]


def newest_commit(uri: str) -> tuple[str, FoundFile] | None:
    """Return the commit file of a location's newest batch, by one listing of ``commits`` alone.

    None: there is none. It blocks.

    Raises:
        ConfigError: The location cannot be reached.
    """
    location = open_location(uri)
    with explained_location_errors(location):
        found = list_files(replace(location, root=f"{location.root}/commits"))
    numbers = [int(name) for name in found if name.isdecimal()]
    return (str(max(numbers)), found[str(max(numbers))]) if numbers else None


def query_id_at(uri: str) -> str | None:
    """Return the id of a location's query; None: it is missing or damaged. It blocks.

    Raises:
        ConfigError: The location cannot be reached.
    """
    location = open_location(uri)
    with explained_location_errors(location):
        try:
            data = bytes(location.files.cat_file(f"{location.root}/metadata"))
        except FileNotFoundError:
            return None
    try:
        return _decoded(_metadata, data, "metadata").id
    except DamageError:
        return None


class HadoopCheck:
    """Compares a file, given piece by piece, with the checksums that Hadoop keeps beside it."""

    def __init__(self, file: str, checksum: bytes) -> None:
        """Take what ``.<file>.crc`` holds: magic, i32 bytes per sum, then a CRC32 for each."""
        if not checksum.startswith(_HADOOP_MAGIC) or len(checksum) % 4:
            raise DamageError(file, "its checksum file is damaged")
        self._file = file
        self._chunk = int.from_bytes(checksum[4:8]) or 1
        self._sums = checksum[8:]
        self._at = 0
        self._rest = b""

    def take(self, data: bytes, *, is_last: bool) -> None:
        """Take the next bytes.

        Raises:
            DamageError: They are not those that were written.
        """
        waiting = self._rest + data
        end = len(waiting) if is_last else len(waiting) - len(waiting) % self._chunk
        for start in range(0, end, self._chunk):
            crc = zlib.crc32(waiting[start : min(start + self._chunk, end)])
            if self._sums[self._at : self._at + 4] != crc.to_bytes(4):
                raise DamageError(self._file, "differs from its checksum")
            self._at += 4
        self._rest = waiting[end:]
        if is_last and self._at != len(self._sums):
            raise DamageError(self._file, "truncated: it is shorter than its checksums say")


def _list_in_order(location: LocationFiles) -> Mapping[str, FoundFile]:
    """List the commits first: all that a batch needs was there before its commit."""
    commits = list_files(replace(location, root=f"{location.root}/commits"))
    found = {n: file for n, file in list_files(location).items() if not n.startswith("commits/")}
    found |= {f"commits/{name}": file for name, file in commits.items()}
    # An object store takes any key: one with ".." in it would be written elsewhere on this disk.
    return {name: file for name, file in found.items() if not _NO_PARTS & {*name.split("/")}}


def _decoded(decoder: msgspec.json.Decoder[T], text: str | bytes, file: str) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise DamageError(file, "truncated or damaged") from exc
