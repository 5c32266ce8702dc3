"""The marker of a changelog: Samza's JSON, and what it takes to verify a restore."""

from dataclasses import dataclass
from typing import Final, Self

import msgspec

from statekeep.backends.kafka.digest import ContentSummary
from statekeep.checkpoint.checkpoints import Marker
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

_VERSION: Final = 1
_NO_BUCKET: Final = -1


class _SspJson(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    system: str
    partition: int
    stream: str
    key_bucket: int = _NO_BUCKET


class _MarkerJson(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    version: int
    changelog_ssp: _SspJson
    changelog_offset: str | None
    topic_id: str = ""
    state_version: str = ""
    live_keys: int = 0
    live_bytes: int = 0
    content_digest: str = ""
    is_transactional: bool = True
    oldest_offset: int = 0


class _Versioned(msgspec.Struct, frozen=True, kw_only=True):
    version: int


_decoder = msgspec.json.Decoder(_MarkerJson)
_version_decoder = msgspec.json.Decoder(_Versioned)


@dataclass(frozen=True, slots=True)
class ChangelogMarker:
    """Where one store's state ends in its changelog, and what it adds up to.

    Source: Samza 1.8 ``KafkaStateCheckpointMarker``; the fields from ``topic_id`` on are ours.
    """

    topic: str
    partition: int
    offset: int | None
    """Of the last record that belongs to the state; None: nothing was ever written."""
    topic_id: str = ""
    """Tells a topic from one that was created later under its name; empty: Samza's."""
    version: str = ""
    """The `VersionId` that the state is of; empty: Samza's."""
    content: ContentSummary | None = None
    """None: Samza's, the restore cannot be verified."""
    is_transactional: bool = True
    """Whether a record that ends a transaction stands behind the offset."""
    start: int = 0
    """Offset of the oldest record at that time: of a topic that begins later something is lost."""

    def encode(self, system: str) -> Marker:
        """Return the marker as the checkpoint holds it.

        Args:
            system: What Samza calls the cluster: the name of the backend.
        """
        content = self.content or ContentSummary()
        data = _MarkerJson(
            version=_VERSION,
            changelog_ssp=_SspJson(
                system=system, partition=self.partition, stream=self.topic, key_bucket=_NO_BUCKET
            ),
            changelog_offset=None if self.offset is None else str(self.offset),
            topic_id=self.topic_id,
            state_version=self.version,
            live_keys=content.live_keys,
            live_bytes=content.live_bytes,
            content_digest="" if self.content is None else content.hexdigest,
            is_transactional=self.is_transactional,
            oldest_offset=self.start,
        )
        return Marker(msgspec.json.encode(data).decode())

    @classmethod
    def decode(cls, marker: Marker) -> Self:
        """Read a marker of ours or of Samza.

        Raises:
            CheckpointCorruptError: It is of another form.
            UnknownFormatError: It is of a newer version.
        """
        try:
            read = _read(marker)
            offset = None if read.changelog_offset is None else int(read.changelog_offset)
            digest = int(read.content_digest, 16) if read.content_digest else None
        except (msgspec.MsgspecError, ValueError) as exc:
            raise CheckpointCorruptError(f"not a changelog marker: marker={marker!r}") from exc
        ssp = read.changelog_ssp
        if ssp.key_bucket != _NO_BUCKET or ssp.partition < 0 or (offset or 0) < 0:
            raise CheckpointCorruptError(f"changelog marker of no partition: marker={marker!r}")
        content = (
            None if digest is None else ContentSummary(read.live_keys, read.live_bytes, digest)
        )
        return cls(
            topic=ssp.stream,
            partition=ssp.partition,
            offset=offset,
            topic_id=read.topic_id,
            version=read.state_version,
            content=content,
            is_transactional=read.is_transactional,
            start=read.oldest_offset,
        )


def _read(marker: Marker) -> _MarkerJson:
    """Read the JSON; its version first, since another one may have other fields.

    Raises:
        UnknownFormatError: It is of a newer version.
        ValueError: It is of another form.
    """
    data = marker.encode()
    version = _version_decoder.decode(data).version
    if version > _VERSION:
        raise UnknownFormatError(f"changelog marker of an unknown format: version={version}")
    if version < _VERSION:
        raise ValueError(f"there was no such version: version={version}")
    return _decoder.decode(data)
