"""A query's checkpoint location, read and written through Hadoop's FileSystem as Spark does."""

import json
import os
import re
import struct
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from statekeep.errors import CheckpointLocationError
from statekeep.spark.releases import RELEASE

_BATCH_FILE = re.compile(r"\d+")
_CRC_HEADER = struct.Struct(">4si")
_FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PLAIN_RENAMES: Final = ".".join(
    (
        "org.apache.spark.sql.execution.streaming",
        *(["checkpointing"] if RELEASE >= (4, 1) else []),
        "FileSystemBasedCheckpointFileManager",
    )
)
_IS_CHECKSUM = re.compile(r"\..*\.crc")
"""A file of Hadoop's local file system, which its own listings leave out."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The clock of one batch, as ``offsets/<batch>`` has it: the same in any replay."""

    processing_time_ms: int
    watermark_ms: int


class CheckpointLocation:
    """The files of one checkpoint location. Used on the driver, blocking.

    Reads what Spark wrote (``metadata``, ``offsets/``, ``commits/``, ``sources/``); writes only to
    locations of its own (a shadow, a rebuilt one), and to one that is adopted.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Hadoop's FileSystem is the JVM's
        java: Any = spark._jsparkSession  # noqa: SLF001 - as above
        self._conf: Any = java.sessionState().newHadoopConf()
        self._fs: Any = self._path("").getFileSystem(self._conf)
        own = self._fs.makeQualified(self._path("")).toUri()
        self._local = Path(own.getPath()) if own.getScheme() == "file" else None
        self._qualified = str(self._local or own.toString())

    @property
    def shared_uri(self) -> str:
        """The location as every process of the job finds it.

        Executors and sidecars have working directories of their own, and no default file system
        of Hadoop's: ``checkpoint`` or ``/checkpoint`` would lead each of them elsewhere.
        """
        return self.uri if urlsplit(self.uri).scheme else self._qualified

    @contextmanager
    def plain_renames(self) -> Generator[None]:
        """Let a query that is started inside rename its files here itself, if the location is local.

        By default Spark runs the program ``readlink`` before each rename of a local file. Either way it
        refuses to replace a file that is there. A choice of the program's own counts.
        """
        conf = self._spark.conf
        if self._local is None or conf.get(_FILE_MANAGER, None) is not None:
            yield
            return
        conf.set(_FILE_MANAGER, _PLAIN_RENAMES)
        try:
            yield
        finally:
            conf.unset(_FILE_MANAGER)

    def sibling(self, suffix: str) -> Self:
        """Return the location ``<uri><suffix>``."""
        return type(self)(self._spark, self.uri + suffix)

    def sibling_suffixes(self, start: str) -> list[str]:
        """Return the suffixes of the locations ``<uri><suffix>`` that begin with ``start``."""
        own = self._path("")
        parent = own.getParent()
        if parent is None or not self._fs.exists(parent):
            return []
        names = [status.getPath().getName() for status in self._fs.listStatus(parent)]
        prefix = str(own.getName())
        return [n.removeprefix(prefix) for n in names if n.startswith(prefix + start)]

    def query_id(self) -> str | None:
        """Return the id in ``metadata``; None if the location was never used.

        Raises:
            CheckpointLocationError: The file cannot be read as Spark writes it.
        """
        text = self.read("metadata")
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as exc:
            msg = f"metadata of the checkpoint location is damaged: location={self.uri}"
            error = CheckpointLocationError(msg)
            error.add_note("hint: put the file back from a copy; it names the query of the job log")
            raise error from exc

    def batches(self, log: str) -> list[int]:
        """Return the batch numbers in ``offsets`` or ``commits``, ascending."""
        return sorted(int(name) for name in self.names(log) if _BATCH_FILE.fullmatch(name))

    def newest(self, log: str) -> int:
        """Return the newest batch in ``offsets`` or ``commits``; -1 if there is none."""
        return max(self.batches(log), default=-1)

    def check_newest(self) -> None:
        """Make sure that what a start reads first, the newest offsets and commit, was not cut off.

        Raises:
            CheckpointLocationError: It was, as a crash of the host may leave it.
        """
        for log, least_lines in (("offsets", 3), ("commits", 2)):
            newest = self.newest(log)
            if newest >= 0:
                lines = self.require(f"{log}/{newest}").split("\n")
                if len(lines) < least_lines or not _is_json(lines[1]):
                    msg = f"file of the checkpoint location is cut off: file={self.uri}/{log}/{newest}"
                    error = CheckpointLocationError(msg)
                    error.add_note("hint: put the file back from a copy of the checkpoint location")
                    raise error

    def require(self, name: str) -> str:
        """Return the text of a file that must be there.

        Raises:
            CheckpointLocationError: It is not.
        """
        text = self.read(name)
        if text is None:
            msg = f"file is missing in the checkpoint location: file={self.uri}/{name}"
            raise CheckpointLocationError(msg)
        return text

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if there is none."""
        if self._local is not None:  # calls into the JVM cost more than the file
            with suppress(FileNotFoundError, NotADirectoryError):
                data = _read_checked(self._local / name)
                if data is not None:
                    return data.decode()
        path = self._path(name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            data = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return bytes(data).decode()

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all; one that is there is replaced."""
        temporary, target = self._path(f"{name}.statekeep-tmp"), self._path(name)
        stream = self._fs.create(temporary, True)  # noqa: FBT003 - Hadoop's signature
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        self._fs.delete(target, False)  # noqa: FBT003
        if not self._fs.rename(temporary, target):
            msg = f"cannot write to the checkpoint location: file={self.uri}/{name}"
            raise CheckpointLocationError(msg)

    def move(self, name: str, target: str) -> None:
        """Give a file or directory another name, which nothing has.

        Raises:
            CheckpointLocationError: Something has, or it cannot be done.
        """
        to = self._path(target)
        if self._fs.exists(to) or not self._fs.rename(self._path(name), to):
            msg = f"cannot rename in the checkpoint location: file={self.uri}/{name} to={target}"
            raise CheckpointLocationError(msg)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, none if it is not there."""
        if self._local is not None:
            try:
                names = os.listdir(self._local / directory)  # noqa: PTH208 - names are needed
            except (FileNotFoundError, NotADirectoryError):
                return []
            return [name for name in names if not _IS_CHECKSUM.fullmatch(name)]
        path = self._path(directory)
        if not self._fs.exists(path):
            return []
        return [status.getPath().getName() for status in self._fs.listStatus(path)]

    def copy_from(self, other: "CheckpointLocation", directory: str) -> None:
        """Copy a whole directory of another location here, if it is there."""
        source = other._path(directory)  # noqa: SLF001 - of this class
        source_fs = other._fs  # noqa: SLF001
        if not source_fs.exists(source):
            return
        keep_source, overwrite = False, True
        copied = self._jvm.org.apache.hadoop.fs.FileUtil.copy(
            source_fs,
            source,
            self._fs,
            self._path(directory),
            keep_source,
            overwrite,
            self._conf,
        )
        if not copied:
            msg = f"cannot copy the checkpoint location: from={other.uri}/{directory} to={self.uri}"
            raise CheckpointLocationError(msg)

    def delete(self) -> None:
        """Delete the whole location. Idempotent."""
        self._fs.delete(self._path(""), True)  # noqa: FBT003 - Hadoop's signature

    def _path(self, name: str) -> Any:  # noqa: ANN401 - a Java object
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}" if name else self.uri)


def _read_checked(path: Path) -> bytes | None:
    """Return a file of Hadoop's local file system; None unless it fits its checksum file.

    Source: Hadoop 3.4 `ChecksumFileSystem`: a mark, the bytes per checksum, a CRC-32 of each chunk.
    """
    data = path.read_bytes()
    sums = path.with_name(f".{path.name}.crc").read_bytes()
    if sums[:4] != b"crc\0" or len(sums) < _CRC_HEADER.size:
        return None
    _, chunk = _CRC_HEADER.unpack_from(sums)
    if chunk <= 0:
        return None
    expected = b"".join(
        zlib.crc32(data[at : at + chunk]).to_bytes(4, "big") for at in range(0, len(data), chunk)
    )
    return data if sums[_CRC_HEADER.size :] == expected else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def parse_batch_time(offsets: str, where: str) -> BatchTime:
    """Read the clock of a batch from the text of its offsets file.

    Raises:
        CheckpointLocationError: The text is not what Spark writes.
    """
    try:
        metadata = json.loads(offsets.split("\n")[1])
        return BatchTime(int(metadata["batchTimestampMs"]), int(metadata["batchWatermarkMs"]))
    except (ValueError, KeyError, IndexError, TypeError) as exc:
        msg = f"offsets file is damaged: file={where}"
        raise CheckpointLocationError(msg) from exc
