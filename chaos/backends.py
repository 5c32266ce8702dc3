"""The places that a schedule may back its state up to, by the names of the command line."""

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from chaos.evidence.deltas import load_upload
from chaos.evidence.files import Files, LocalFiles
from chaos.evidence.logs import FileLog, LogEvidence
from chaos.evidence.remote import (
    Reader,
    RemoteFiles,
    Topic,
    TopicLog,
    database_content,
    folded,
    marker_place,
)
from chaos.evidence.snapshots import read_snapshot
from chaos.servers import NO_SERVER, Server
from statekeep.fault_points import HDFS_FAULT_POINTS, KAFKA_FAULT_POINTS

Form = Literal["blob", "hdfs", "kafka"]

_READER: Final = Reader()
"""One for all places: the harness has no threads, and must not get any."""


@dataclass(frozen=True, slots=True)
class BackendKind:
    """One kind of place."""

    form: Form
    """What its state looks like, and so how evidence is read."""
    settings: Callable[["Place"], Mapping[str, str]]
    """The backend's settings, its ``factory`` included."""
    server: str = ""
    """The server that must run, as `chaos.servers` names it; empty: local files."""


@dataclass(frozen=True, slots=True)
class Place:
    """One backend of a job."""

    name: str
    """As the job's settings name it."""
    kind: str
    directory: Path
    """Of its own; what is on a server lies elsewhere."""
    server: Server = NO_SERVER
    uid: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Part of what it is called on a server, so that no two schedules meet."""

    @property
    def form(self) -> Form:
        """What its state looks like."""
        return KINDS[self.kind].form

    @property
    def is_local(self) -> bool:
        """Whether all of it is files below `directory`."""
        return not KINDS[self.kind].server

    @property
    def is_damageable(self) -> bool:
        """Whether a fault may damage its state: files at hand that no other writer mends."""
        return self.is_local and self.form != "kafka"

    @property
    def has_blobs(self) -> bool:
        """Whether its state is blobs with an index, as the blob backend makes them."""
        return self.form == "blob"

    @property
    def root(self) -> str:
        """Where it is on its server."""
        return f"{self.server.root}/{self.uid}/{self.name}"

    def settings(self) -> Mapping[str, str]:
        """Return the job's settings for this backend."""
        given = KINDS[self.kind].settings(self)
        return {f"backends.{self.name}.{key}": value for key, value in given.items()}

    def files(self) -> Files:
        """Return a reader of what it keeps; not for a changelog."""
        if self.is_local:
            return LocalFiles(self.directory)
        server = KINDS[self.kind].server
        return RemoteFiles(_READER, server, self.server.address, self.root)

    def log(self, scope: str) -> LogEvidence:
        """Return a reader of a job log that it holds."""
        if self.form != "kafka":
            return FileLog(self.files(), scope)
        # As the Kafka page says of `_`; the names of these jobs have nothing else to escape.
        name = ".".join([self.topic_prefix, *scope.replace("_", "_5f").split("/"), "job-log"])
        return TopicLog(Topic(_READER, self.server.address, name))

    def content(self, marker: str) -> Mapping[bytes, bytes]:
        """Return keys and values of a store at a marker.

        Raises:
            ValueError: Something is missing or damaged.
        """
        if self.form == "blob":
            snapshot = read_snapshot(self.files(), marker)
            return snapshot.content(partial(database_content, _READER))
        if self.form == "hdfs":
            return load_upload(self.files(), marker)
        topic, partition, offset = marker_place(marker)
        if offset is None:
            return {}
        return folded(Topic(_READER, self.server.address, topic, partition), offset)

    @property
    def topic_prefix(self) -> str:
        """What the names of its topics begin with."""
        return f"chaos-{self.uid}-{self.name}"


def _blob(place: Place) -> Mapping[str, str]:
    return {"factory": "blob", "uri": f"file://{place.directory}"}


def _s3(place: Place) -> Mapping[str, str]:
    endpoint = place.server.address
    return {"factory": "blob", "uri": place.root, "s3.endpoint": endpoint, "s3.path.style": "true"}


def _hdfs_file(place: Place) -> Mapping[str, str]:
    return {"factory": "hdfs", "uri": f"file://{place.directory}"}


def _hdfs(place: Place) -> Mapping[str, str]:
    return {"factory": "hdfs", "uri": place.root}


def _kafka(place: Place) -> Mapping[str, str]:
    return {
        "factory": "kafka",
        "bootstrap.servers": place.server.address,
        "topic.prefix": place.topic_prefix,
        "timeout.ms": "5000",
        "retry.max.duration.ms": "5000",
    }


KINDS: Final[Mapping[str, BackendKind]] = MappingProxyType(
    {
        "blob": BackendKind("blob", _blob),
        "blob-s3": BackendKind("blob", _s3, server="s3"),
        "hdfs": BackendKind("hdfs", _hdfs, server="hdfs"),
        "hdfs-file": BackendKind("hdfs", _hdfs_file),
        "kafka": BackendKind("kafka", _kafka, server="kafka"),
    }
)
"""Every kind, by the name that ``BACKENDS`` uses."""


def servers_of(kinds: Sequence[str]) -> set[str]:
    """Return the servers that some kinds need.

    Raises:
        KeyError: There is no such kind.
    """
    return {KINDS[kind].server for kind in kinds} - {""}


def fault_points_of(kinds: Sequence[str]) -> Sequence[str]:
    """Return the fault points that uploads to some kinds have besides those of all.

    Raises:
        KeyError: There is no such kind.
    """
    forms = {KINDS[kind].form for kind in kinds}
    return (
        *(KAFKA_FAULT_POINTS if "kafka" in forms else ()),
        *(HDFS_FAULT_POINTS if "hdfs" in forms else ()),
    )


def draw_late_snapshots(seed: int) -> Mapping[str, str]:
    """Return after how many deltas HDFS backends make a snapshot.

    By a generator of its own: the rest of a seed's schedule stays as it was before.
    """
    draw = random.Random(f"late-snapshots-{seed}")  # noqa: S311 - replayable, not secret
    return {"hdfs.store.min.deltas.for.snapshot": draw.choice(("1", "2", "3", "10"))}


def places(
    kinds: Sequence[str], directory: Path, servers: Mapping[str, Server] = MappingProxyType({})
) -> Sequence[Place]:
    """Return a place for each kind, named by kind and number: two of one kind stand side by side.

    Raises:
        KeyError: There is no such kind, or its server does not run.
    """
    found: list[Place] = []
    for number, kind in enumerate(kinds, 1):
        name, server = f"{kind}-{number}", KINDS[kind].server
        running = servers[server] if server else NO_SERVER
        found.append(Place(name, kind, directory / name, running))
    return found


def close() -> None:
    """End the process that reads from servers. Idempotent."""
    _READER.close()
