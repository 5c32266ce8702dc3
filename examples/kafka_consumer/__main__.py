"""Counts the words of a Kafka topic, with state, log and checkpoints in Kafka too.

    python -m examples.kafka_consumer --servers broker:9092 --topic words --local-dir ./local

Kill it at any moment, with ``kill -9`` too, and start it again, here or on another machine: it goes
on from its last commit, so that every record counts exactly once in the state. With ``--until-end``
it ends at the end of the topic and prints the counts.
"""

import argparse
import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

import statekeep as sk

STORE: Final = "counts"
_BATCH: Final = 500
_WAIT_S: Final = 0.2


async def count(arguments: argparse.Namespace) -> None:
    """Run one task on partition 0 of the topic."""
    config = sk.load_dict(
        {
            "job.name": f"count-{arguments.topic}",
            "job.logged.store.base.dir": arguments.local_dir,
            "stores.backup.factories": "kafka",
            "kafka.bootstrap.servers": arguments.servers,
            "task.commit.ms": arguments.commit_ms,
        },
        "arguments",
    )
    source = sk.SystemStreamPartition("kafka", arguments.topic, 0)
    async with sk.Container(config) as container:
        task = await container.start_task("Partition 0", [STORE])
        consumer = _start(arguments, task.input_offsets.get(source))
        try:
            await _follow(consumer, task, source, until_end=arguments.until_end)
        finally:
            consumer.close()
        if arguments.until_end:
            for word, number in task.store(STORE).scan():
                print(word.decode(), int(number))


def _start(arguments: argparse.Namespace, last_offset: str | None) -> Consumer:
    """Begin behind the last record that the restored state has taken in."""
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.servers,
            "group.id": "statekeep-example",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    offset = OFFSET_BEGINNING if last_offset is None else int(last_offset) + 1
    consumer.assign([TopicPartition(arguments.topic, 0, offset)])
    return consumer


async def _follow(
    consumer: Consumer, task: sk.Task, source: sk.SystemStreamPartition, *, until_end: bool
) -> None:
    offsets = dict(task.input_offsets)
    is_at_end = False
    while not (until_end and is_at_end):
        messages = consumer.consume(_BATCH, _WAIT_S)
        records = [message for message in messages if message.error() is None]
        is_at_end = any(_is_end(message) for message in messages)
        if records:
            _add(task, records)
            offsets[source] = str(records[-1].offset())
        # Commits only when one is due; the upload goes on beside the next batches.
        await task.commit(offsets)
        await asyncio.sleep(0)
    await (await task.commit(offsets, force=True)).wait()


def _add(task: sk.Task, records: list[Message]) -> None:
    store = task.store(STORE)
    seen = Counter(record.value() or b"" for record in records)
    words = list(seen)
    before = store.get_many(words)
    store.write(
        {
            word: b"%d" % (int(number or 0) + seen[word])
            for word, number in zip(words, before, strict=True)
        }
    )


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001  # public name of the library


def main() -> None:
    """Read the arguments and count."""
    parser = argparse.ArgumentParser(prog="python -m examples.kafka_consumer")
    parser.add_argument("--servers", required=True, help="host:port of the cluster")
    parser.add_argument("--topic", required=True, help="whose partition 0 is read")
    parser.add_argument("--local-dir", type=Path, required=True, help="for the local store")
    parser.add_argument("--commit-ms", default="1s", help="time between two commits")
    parser.add_argument("--until-end", action="store_true", help="end there, print the counts")
    asyncio.run(count(parser.parse_args()))


if __name__ == "__main__":
    main()
