"""What servers and databases hold, through a process that has their libraries."""

import base64
import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import override

from chaos.evidence.files import Files
from chaos.evidence.logs import LogEvidence

_ROOT = Path(__file__).parents[2]
_FLOOR = b"floor"


class UnreadableError(Exception):
    """Raised when a server does not give what it should."""


class Reader:
    """The process, started with the first question; used by one thread."""

    def __init__(self, module: str = "chaos.evidence.reader") -> None:
        """Name the module that is run; its functions are what can be asked for."""
        self._module = module
        self._process: subprocess.Popen[str] | None = None

    def ask(self, call: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        """Return the answer of a function of the module.

        Raises:
            UnreadableError: It failed.
        """
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 - a module of ours
                [sys.executable, "-m", self._module],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None  # noqa: S101 - a pipe, as asked for
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write(json.dumps([call, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "the reader has ended"}')
        if "error" in answer:
            raise UnreadableError(f"{call} {arguments}: {answer['error']}")
        return answer["found"]

    def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.wait()
            process.stdout.close()


class RemoteFiles(Files):
    """The blobs of a place on a server."""

    def __init__(self, reader: Reader, kind: str, address: str, root: str) -> None:
        """Take where they are; ``kind`` is ``s3`` or ``hdfs``."""
        self._reader = reader
        self._kind = kind
        self._place = (address, root)

    @override
    def names(self, prefix: str) -> set[str]:
        return set(self._reader.ask(f"{self._kind}_names", *self._place, prefix))

    @override
    def unfinished(self, prefix: str) -> set[str]:
        return set(self._reader.ask(f"{self._kind}_unfinished", *self._place, prefix))

    @override
    def empty_directories(self, prefix: str) -> set[str]:
        if self._kind != "hdfs":
            return set()
        return set(self._reader.ask("hdfs_empty_directories", *self._place, prefix))

    @override
    def read(self, name: str) -> bytes:
        found = self._reader.ask(f"{self._kind}_read", *self._place, name)
        if found is None:
            raise FileNotFoundError(name)
        return base64.b64decode(found)


def database_content(reader: Reader, image: Mapping[str, bytes]) -> dict[bytes, bytes]:
    """Return keys and values of a database, given the bytes of its files.

    Raises:
        ValueError: It cannot be opened.
    """
    with TemporaryDirectory(prefix="statekeep-evidence-") as directory:
        for path, data in image.items():
            target = Path(directory) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        try:
            found = reader.ask("database_read", directory)
        except UnreadableError as exc:
            raise ValueError(f"a database cannot be read: {exc}") from exc
    return {base64.b64decode(key): base64.b64decode(value) for key, value in found}


class Topic:
    """The committed records of one partition."""

    def __init__(self, reader: Reader, address: str, topic: str, partition: int = 0) -> None:
        self._reader = reader
        self._place = (address, topic, partition)

    def records(self) -> list[tuple[int, bytes, bytes | None]]:
        """Return offset, key and value of each record; nothing if there is no such topic."""
        found = self._reader.ask("kafka_read", *self._place)
        return [
            (offset, base64.b64decode(key), None if value is None else base64.b64decode(value))
            for offset, key, value in found
        ]


class TopicLog(LogEvidence):
    """A log of one record a position."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    @override
    def records(self, known: Collection[int] = ()) -> Mapping[int, bytes]:
        return {
            int(key): value
            for _, key, value in self._topic.records()
            if key != _FLOOR and value is not None and int(key) not in known
        }

    @override
    def floor(self) -> int:
        values = [value for _, key, value in self._topic.records() if key == _FLOOR and value]
        return max(map(int, values), default=0)


def folded(topic: Topic, offset: int) -> dict[bytes, bytes]:
    """Return what the changes of a topic up to an offset add up to."""
    content: dict[bytes, bytes] = {}
    for at, key, value in topic.records():
        if at > offset:
            break
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
    return content


def marker_place(marker: str) -> tuple[str, int, int | None]:
    """Return topic, partition and last offset of a changelog's marker."""
    document = json.loads(marker)
    place, offset = document["changelog-ssp"], document["changelog-offset"]
    return place["stream"], place["partition"], None if offset is None else int(offset)
