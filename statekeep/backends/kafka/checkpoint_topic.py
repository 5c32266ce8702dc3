"""Samza's checkpoint topic: both forms of each task's newest checkpoint, under keys of their own.

Source: Samza 1.8 ``KafkaCheckpointManager``, ``KafkaCheckpointLogKeySerde``. The newest record of a
key counts, so that compaction keeps one checkpoint of each form for each task.
"""

import logging
from asyncio import Lock
from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec
from confluent_kafka import Message
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.compacted_topic import CompactedTopic
from statekeep.backends.kafka.legacy_checkpoint import from_v1, to_v1
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.retry import Retrier
from statekeep.checkpoint.checkpoint_manager import (
    CheckpointForms,
    CheckpointManager,
    StoredCheckpoint,
    choose_checkpoint,
)
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, TaskName
from statekeep.checkpoint.decoding import decode_json
from statekeep.checkpoint.serde import (
    decode_checkpoint_v1,
    decode_checkpoint_v2,
    encode_checkpoint_v1,
    encode_checkpoint_v2,
    with_backend_names,
)
from statekeep.clock import Clock
from statekeep.config.kafka_keys import CHECKPOINT_GROUPER
from statekeep.config.resolve import CHANGELOG_BACKEND
from statekeep.config.store_keys import BACKEND_ALIASES
from statekeep.errors import CheckpointCorruptError

logger = logging.getLogger(__name__)

_TYPES: Final[Mapping[str, int]] = {"checkpoint": 1, "checkpoint-v2": 2}
_UNKNOWN: Final = 0


class _KeyJson(msgspec.Struct, frozen=True, kw_only=True):
    grouper: str | None = msgspec.field(name="systemstreampartition-grouper-factory", default=None)
    """Samza refuses the checkpoints of another one than its job's; it is not looked at here."""
    task_name: str = msgspec.field(name="taskName")
    type: str


_key_decoder = msgspec.json.Decoder(_KeyJson)


def decode_key(data: bytes, *, where: str) -> _KeyJson:
    """Read the key of a checkpoint.

    Raises:
        CheckpointCorruptError: It is none.
    """
    return decode_json(_key_decoder, data, f"not a key of a checkpoint: {where}")


def checkpoint_topic(job_name: str, job_id: str) -> str:
    """Return the name that Samza gives the topic."""
    name, number = job_name.replace("_", "-"), job_id.replace("_", "-")
    return f"__samza_checkpoint_ver_1_for_{name}_{number}"


def checkpoint_key(
    task: TaskName, version: int, grouper: str = CHECKPOINT_GROUPER.default
) -> bytes:
    """Return the key of a task's checkpoints of one form, byte for byte as Samza writes it."""
    (kind,) = (kind for kind, number in _TYPES.items() if number == version)
    return msgspec.json.encode(_KeyJson(grouper=grouper, task_name=task, type=kind))


class KafkaCheckpointManager(CheckpointManager):
    """Reads the topic at the first call for a task, and then what is new.

    It keeps the checkpoints of the tasks that were asked for; mostly that is one of many in the topic.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        forms: CheckpointForms,
        backend: BackendName,
        *,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> None:
        """Build it; nothing is reached yet.

        Args:
            settings: Of the cluster; how long writes are repeated, and which topics are changelogs.
            topic: See `checkpoint_topic`.
            forms: Which forms are written and read.
            backend: Name under which markers of changelogs stand: whatever it is called here, Samza
                has one class for all.
            executor: For blocking calls.
            clock: For pauses.
        """
        self._settings = settings
        self._forms = forms
        self._backend = backend
        self._topic = CompactedTopic(
            settings,
            topic,
            executor=executor,
            clock=clock,
            replicas=settings.checkpoint_replicas,
        )
        self._retrier = Retrier(settings.retry, clock)
        self._aliases = {
            name: backend if kind == CHANGELOG_BACKEND else BackendName(kind)
            for name, kind in BACKEND_ALIASES.items()
        }
        self._reading = Lock()
        self._found: dict[str, dict[int, StoredCheckpoint]] = {}
        self._skipped_kinds: set[str] = set()
        self._unread: deque[Message] = deque()

    @override
    async def write(self, task: TaskName, checkpoint: CheckpointV2) -> None:
        grouper = self._settings.checkpoint_grouper
        entries = [
            (checkpoint_key(task, version, grouper), self._encode(checkpoint, version))
            for version in self._forms.write_versions
        ]
        await self._retrier.run(
            lambda: self._topic.send(entries), operation="write checkpoint", subject=task
        )

    @override
    async def read_last(self, task: TaskName) -> CheckpointV2 | None:
        async with self._reading:
            if task not in self._found:
                self._found = {name: {} for name in (*self._found, task)}
                self._unread.clear()
                self._topic.rewind()
            self._unread += await self._topic.read_new(self._is_wanted)
            while self._unread:
                self._take(self._unread[0])
                self._unread.popleft()  # not before: one that is refused is met again
            chosen = choose_checkpoint(self._found[task].values(), self._forms)
        return None if chosen is None else self._decode(task, chosen)

    @override
    async def close(self) -> None:
        await self._topic.close()

    def _is_wanted(self, record: Message) -> bool:
        """Return whether a record is of a task that was asked for, or of nobody knows whom."""
        try:
            return self._key(record).task_name in self._found
        except CheckpointCorruptError:
            return True  # refused where it is taken

    def _take(self, record: Message) -> None:
        """Keep a record that is a checkpoint of a form that is read; a tombstone forgets one."""
        key = self._key(record)
        version = _TYPES.get(key.type, _UNKNOWN)
        if version not in self._forms.read_versions:
            if key.type not in self._skipped_kinds:
                self._skipped_kinds.add(key.type)
                logger.warning(
                    "checkpoints of a form that is not read are left out: topic=%s type=%s",
                    self._topic.name,
                    key.type,
                )
            return
        found, data = self._found[key.task_name], record.value()
        found.pop(version, None)  # so that the newest stands last
        if data is not None:
            found[version] = StoredCheckpoint(version, record.timestamp()[1], data)

    def _key(self, record: Message) -> _KeyJson:
        where = f"topic={self._topic.name} offset={record.offset()}"
        return decode_key(record.key() or b"", where=where)

    def _encode(self, checkpoint: CheckpointV2, version: int) -> bytes:
        if version == 1:
            return encode_checkpoint_v1(to_v1(checkpoint, self._backend))
        return encode_checkpoint_v2(checkpoint)

    def _decode(self, task: TaskName, stored: StoredCheckpoint) -> CheckpointV2:
        where = f"topic={self._topic.name} task={task} version={stored.version}"
        if stored.version == 1:
            legacy = decode_checkpoint_v1(stored.data, where)
            return from_v1(legacy, stored.written_ms, self._settings, self._backend)
        return with_backend_names(decode_checkpoint_v2(stored.data, where), self._aliases)
