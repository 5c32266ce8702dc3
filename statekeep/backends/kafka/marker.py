"""The marker of a changelog: the fields of Samza's, and what it takes to verify a restore."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec
from xxhash import xxh3_128_intdigest

from statekeep.checkpoint.checkpoints import Marker
from statekeep.checkpoint.framing import decode_json
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

_VERSION: Final = 1
_NO_BUCKET: Final = -1
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka takes for the name of a topic."""
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_MAX_PARTITION: Final = 2**31 - 1
_SHOWN_CHARACTERS: Final = 1000
"""Of a marker, in an error."""


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


_MODULUS: Final = 1 << 128


@dataclass(frozen=True, slots=True)
class ContentSummary:
    """Count, size and digest of the live entries of a store.

    The digest is the sum modulo 2**128 of the XXH3-128 of ``key + value``, seeded with the length
    of the key. It tells content that was lost or came back from what was committed; it is no
    defence against forged records.
    """

    live_keys: int = 0
    live_bytes: int = 0
    """Of keys and values."""
    digest: int = 0

    @classmethod
    def of(cls, entries: Iterable[tuple[bytes, bytes]]) -> Self:
        """Add up all entries of a store; each key occurs once."""
        live_keys, live_bytes, digest = 0, 0, 0
        for key, value in entries:
            record = key + value
            live_keys += 1
            live_bytes += len(record)
            digest += xxh3_128_intdigest(record, len(key))
        return cls(live_keys, live_bytes, digest % _MODULUS)

    def plus(self, other: "ContentSummary") -> "ContentSummary":
        """Return the summary of both contents, which share no key."""
        return ContentSummary(
            self.live_keys + other.live_keys,
            self.live_bytes + other.live_bytes,
            (self.digest + other.digest) % _MODULUS,
        )

    def changed(self, changes: Iterable[tuple[bytes, bytes | None, bytes | None]]) -> Self:
        """Return the summary after some changes.

        Args:
            changes: Key, value before and value after, None where there is none; each key once.
        """
        live_keys, live_bytes, digest = self.live_keys, self.live_bytes, self.digest
        for key, before, after in changes:
            if before is not None:
                live_keys -= 1
                live_bytes -= len(key) + len(before)
                digest -= xxh3_128_intdigest(key + before, len(key))
            if after is not None:
                live_keys += 1
                live_bytes += len(key) + len(after)
                digest += xxh3_128_intdigest(key + after, len(key))
        return type(self)(live_keys, live_bytes, digest % _MODULUS)

    @property
    def hexdigest(self) -> str:
        """The digest as 32 hexadecimal digits."""
        return f"{self.digest:032x}"


@dataclass(frozen=True, slots=True)
class KafkaStateCheckpointMarker:
    """Where one store's state ends in its changelog, and what it adds up to.

    Source: Samza 1.8, where it has this name; the fields from ``topic_id`` on are ours.
    """

    topic: str
    partition: int
    offset: int | None
    """Of the last record that belongs to the state; None: nothing was ever written."""
    topic_id: str = ""
    """Tells a topic from one that was created later under its name."""
    version: str = ""
    """The `VersionId` that the state is of."""
    content: ContentSummary = field(default_factory=ContentSummary)
    """What a restore is compared with."""
    is_transactional: bool = True
    """Whether a record that ends a transaction stands behind the offset."""
    start: int = 0
    """Offset of the oldest record at that time: of a topic that begins later something is lost."""

    def encode(self, system: str) -> Marker:
        """Return the marker as the checkpoint holds it.

        Args:
            system: The name of the backend.
        """
        data = _MarkerJson(
            version=_VERSION,
            changelog_ssp=_SspJson(
                system=system, partition=self.partition, stream=self.topic, key_bucket=_NO_BUCKET
            ),
            changelog_offset=None if self.offset is None else str(self.offset),
            topic_id=self.topic_id,
            state_version=self.version,
            live_keys=self.content.live_keys,
            live_bytes=self.content.live_bytes,
            content_digest=self.content.hexdigest,
            is_transactional=self.is_transactional,
            oldest_offset=self.start,
        )
        return Marker(msgspec.json.encode(data).decode())

    @classmethod
    def decode(cls, marker: Marker) -> Self:
        """Read what `encode` wrote.

        Raises:
            CheckpointCorruptError: It is of another form, such as Samza's, which has no digest.
            UnknownFormatError: It is of a newer version.
        """
        damage = f"not a changelog marker: marker={marker[:_SHOWN_CHARACTERS]!r}"
        read = _read(marker, damage)
        ssp, text = read.changelog_ssp, read.changelog_offset
        is_named = (
            _TOPIC.fullmatch(ssp.stream) is not None
            and ssp.stream not in {".", ".."}
            and ssp.key_bucket == _NO_BUCKET
            and 0 <= ssp.partition <= _MAX_PARTITION
        )
        is_offset = text is None or _OFFSET.fullmatch(text) is not None
        if not is_named or not is_offset or _DIGEST.fullmatch(read.content_digest) is None:
            raise CheckpointCorruptError(damage)
        offset = None if text is None else int(text)
        digest = int(read.content_digest, 16)
        return cls(
            topic=ssp.stream,
            partition=ssp.partition,
            offset=offset,
            topic_id=read.topic_id,
            version=read.state_version,
            content=ContentSummary(read.live_keys, read.live_bytes, digest),
            is_transactional=read.is_transactional,
            start=read.oldest_offset,
        )


def _read(marker: Marker, damage: str) -> _MarkerJson:
    """Read the JSON; its version first, since another one may have other fields.

    Raises:
        UnknownFormatError: It is of a newer version.
        CheckpointCorruptError: It is of another form; ``damage`` says so.
    """
    data = marker.encode(errors="replace")
    version = decode_json(_version_decoder, data, damage).version
    if version > _VERSION:
        raise UnknownFormatError(f"changelog marker of an unknown format: version={version}")
    if version < _VERSION:
        raise CheckpointCorruptError(f"{damage} version={version}")
    return decode_json(_decoder, data, damage)
