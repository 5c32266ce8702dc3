"""Where a query's sources had got to, as the checkpoints of its tasks say it.

Spark keeps a batch's end offsets in one file for the whole query, exclusive; a checkpoint has the
last offset read of each partition of a topic. Each topic partition stands in one task's checkpoint,
as in a job of Samza: partition q in that of task q modulo N. Sources say nothing of their kind in
that file: Kafka's are known by the form ``{topic: {partition: offset}}``.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.checkpoint.records import CommitRecord
from statekeep.checkpoint.serde import decode_checkpoint_v2

KAFKA: Final = "kafka"
"""The system that topics belong to."""

Offsets = Mapping[SystemStreamPartition, str]
"""The last offset read of each partition; "-1" where nothing was read yet."""

_decoder = msgspec.json.Decoder(dict[str, dict[int, int]])


def topic_offsets(text: str) -> Offsets:
    """Return the last offset read of every topic partition, from the text of ``offsets/<batch>``.

    Of a partition that several sources read the lowest counts. Other kinds of sources have no
    offsets by partition and are left out, whatever their lines are like.
    """
    return {ssp: str(min(ends) - 1) for ssp, ends in _ends(text).items()}


def stands_apart(text: str) -> SystemStreamPartition | None:
    """Return a partition that two sources have read up to different offsets; None if there is none.

    One offset for each partition does not say where such a query stands.
    """
    return next((ssp for ssp, ends in _ends(text).items() if len(ends) > 1), None)


def by_task(offsets: Offsets, partitions: int) -> Mapping[int, Offsets]:
    """Return what stands in the checkpoint of each task, ``{partition of the task: offsets}``."""
    shares: dict[int, dict[SystemStreamPartition, str]] = {p: {} for p in range(partitions)}
    for ssp, offset in offsets.items():
        shares[ssp.partition % partitions][ssp] = offset
    return shares


def commit_offsets(commit: CommitRecord) -> Offsets:
    """Return those of all topics, from the checkpoints of all tasks.

    Raises:
        CheckpointCorruptError: A checkpoint in the record cannot be read.
    """
    return {
        ssp: offset
        for task, raw in commit.checkpoints.items()
        for ssp, offset in decode_checkpoint_v2(
            bytes(raw), where=f"task={task}"
        ).input_offsets.items()
        if ssp.system == KAFKA
    }


def starting_offsets(offsets: Offsets) -> str:
    """Return the JSON that the option ``startingOffsets`` of Spark's Kafka source takes."""
    topics: dict[str, dict[str, int]] = {}
    for ssp, last in sorted(offsets.items()):
        topics.setdefault(ssp.stream, {})[str(ssp.partition)] = int(last) + 1
    return json.dumps(topics)


def _ends(text: str) -> Mapping[SystemStreamPartition, set[int]]:
    """Return the end offsets that the lines of a file give for each topic partition."""
    found: dict[SystemStreamPartition, set[int]] = {}
    for topic, partitions in _topics(text):
        for partition, end in partitions.items():
            found.setdefault(SystemStreamPartition(KAFKA, topic, partition), set()).add(end)
    return found


def _topics(text: str) -> Iterator[tuple[str, Mapping[int, int]]]:
    """Yield what each line of the form has; the file's version and metadata are not of it."""
    for line in text.split("\n"):
        try:
            yield from _decoder.decode(line).items()
        except msgspec.DecodeError:
            continue
