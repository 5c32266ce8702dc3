"""Topics as files: what stands in one partition, one record a line, so that no broker is needed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from golden_kit import GOLDEN

TOPICS: Final = GOLDEN / "kafka"


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A committed record, as a consumer gets it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()

    def to_json(self) -> str:
        """Return the line of the record."""
        fields: dict[str, Any] = {
            "offset": self.offset,
            "timestamp-ms": self.timestamp_ms,
            "key": _text(self.key),
            "value": _text(self.value),
        }
        if self.headers:
            fields["headers"] = [[name, _text(value)] for name, value in self.headers]
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "TopicRecord":
        """Read what `to_json` gave."""
        fields = json.loads(line)
        return cls(
            fields["offset"],
            fields["timestamp-ms"],
            _bytes(fields["key"]),
            _bytes(fields["value"]),
            tuple((name, _bytes(value)) for name, value in fields.get("headers", ())),
        )


@dataclass(frozen=True, slots=True)
class TopicFile:
    """A topic of one partition."""

    topic: str
    topic_id: str
    start: int
    """Offset of the oldest record that is kept, or was."""
    end: int
    """Offset behind the newest record; what ends a transaction takes one too."""
    records: Sequence[TopicRecord]

    def write(self, path: Path) -> None:
        """Write the file: a line that says what it is, and one for each record."""
        head = {
            "topic": self.topic,
            "topic-id": self.topic_id,
            "start": self.start,
            "end": self.end,
        }
        lines = [json.dumps(head), *(record.to_json() for record in self.records)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "TopicFile":
        """Read what `write` wrote."""
        # Only line feeds end a line: text in JSON may hold what else ends one elsewhere.
        first, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        head: Mapping[str, Any] = json.loads(first)
        records = [TopicRecord.from_json(line) for line in lines]
        return cls(head["topic"], head["topic-id"], head["start"], head["end"], records)


def golden_records() -> Iterator[tuple[str, TopicRecord]]:
    """Yield every record of every golden topic, with a name."""
    for path in sorted(TOPICS.rglob("*.jsonl")):
        for record in TopicFile.read(path).records:
            yield f"{path.relative_to(GOLDEN).as_posix()}:{record.offset}", record


def _text(data: bytes | None) -> str | None:
    """Return bytes as text, which is all that golden records hold; None is a tombstone."""
    return None if data is None else data.decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
