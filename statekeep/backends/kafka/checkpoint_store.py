"""The checkpoint store in a compacted topic: one key per task and attempt."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.compacted_topic import CompactedTopic
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.clock import Clock
from statekeep.errors import CheckpointCorruptError

_SEPARATOR: Final = "/"
_ATTEMPT: Final = re.compile(r"([0-9]+)-([0-9]+)")


class KafkaCheckpointStore(CheckpointStore):
    """Entries are records with the key ``<attempt>/<task>``; a tombstone deletes one.

    What was read is kept, so that a call reads no more than what is new.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        *,
        executor: BlockingExecutor,
        clock: Clock,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Build the store; nothing is reached yet.

        Args:
            settings: Of the cluster.
            topic: Of this store alone.
            executor: For blocking calls.
            clock: For time-outs.
            calls: Count what is asked of the client.
        """
        self._topic = CompactedTopic(settings, topic, executor=executor, clock=clock, calls=calls)
        self._entries: dict[str, bytes] = {}

    @override
    async def write(self, attempt: str, task_name: TaskName, data: bytes) -> None:
        await self.write_all(attempt, {task_name: data})

    @override
    async def write_all(self, attempt: str, entries: Mapping[TaskName, bytes]) -> None:
        prefix = f"{attempt}{_SEPARATOR}"
        await self._topic.send(
            [(f"{prefix}{task}".encode(), data) for task, data in entries.items()]
        )

    @override
    async def read(
        self, attempt: str, *, known: Collection[TaskName] = ()
    ) -> Mapping[TaskName, bytes]:
        await self._catch_up()
        found = {TaskName(_task(key)): self._entries[key] for key in self._keys_of(attempt)}
        return {task: data for task, data in found.items() if task not in known}

    @override
    async def attempts(self) -> Collection[tuple[int, int]]:
        await self._catch_up()
        found = (_ATTEMPT.fullmatch(key.partition(_SEPARATOR)[0]) for key in self._entries)
        return {(int(match[1]), int(match[2])) for match in found if match}

    @override
    async def delete(self, attempt: str) -> None:
        await self._catch_up()
        await self._topic.send([(key.encode(), None) for key in self._keys_of(attempt)])

    @override
    async def close(self) -> None:
        await self._topic.close()

    def _keys_of(self, attempt: str) -> list[str]:
        return [key for key in self._entries if key.startswith(f"{attempt}{_SEPARATOR}")]

    async def _catch_up(self) -> None:
        """Read what was written since the last call."""
        for record in await self._topic.read_new():
            where = f"topic={self._topic.name} offset={record.offset()}"
            key, data = entry_key(record.key() or b"", where=where), record.value()
            if data is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = data


def entry_key(data: bytes, *, where: str) -> str:
    """Return the key of an entry.

    Raises:
        CheckpointCorruptError: It is no text.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise CheckpointCorruptError(f"not a key of a task's entry: {where}") from exc


def _task(key: str) -> str:
    return key.partition(_SEPARATOR)[2]
