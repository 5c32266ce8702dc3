"""A topic without a cluster: a list of records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from confluent_kafka import Message

from statekeep.checkpoint.checkpoints import BackendName
from statekeep.stores.delta import Change

MINUTE_MS: Final = 60_000
KAFKA: Final = BackendName("kafka")


@dataclass(frozen=True)
class Record:
    """What a reader asks of a record."""

    place: int
    name: bytes
    data: bytes | None

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes | None:
        return self.data

    def offset(self) -> int:
        return self.place

    def timestamp(self) -> tuple[int, int]:
        """Each write comes a minute after the one before."""
        return 1, self.place * MINUTE_MS


class FakeTopic:
    """Follows and writes one list of records, as `CompactedTopic` does a topic."""

    def __init__(self, name: str, records: list[Record]) -> None:
        self.name = name
        self._records = records
        self._read = 0

    def rewind(self) -> None:
        self._read = 0

    async def read_new(
        self, is_wanted: Callable[[Message], bool] = lambda _: True
    ) -> Sequence[Message]:
        found, self._read = self._records[self._read :], len(self._records)
        return [record for record in cast("Sequence[Message]", found) if is_wanted(record)]

    async def send(self, entries: Sequence[Change]) -> None:
        place = self._records[-1].place + 1 if self._records else 0
        self._records += [Record(place, key, value) for key, value in entries]

    async def close(self) -> None:
        pass
