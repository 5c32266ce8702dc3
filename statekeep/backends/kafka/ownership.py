"""Whose the committed records of a changelog are, asked by whoever is about to give it up."""

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.epochs import EpochStamp, Owners
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.reader import PartitionReader
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.run_to_end import run_to_end
from statekeep.clock import Clock


async def is_own(
    settings: KafkaSettings,
    cluster: Cluster,
    own: EpochStamp,
    place: ChangelogPartition,
    *,
    executor: BlockingExecutor,
    clock: Clock,
) -> bool:
    """Return whether a changelog is there, with committed records that are the job's and no other's.

    Raises:
        CheckpointCorruptError: A record is damaged.
        RetriableError: The cluster does not answer.
    """
    facts = (await run_to_end(executor, cluster.describe, [place.topic])).get(place.topic)
    if facts is None or facts.partitions <= place.partition:
        return False
    start = (await run_to_end(executor, cluster.start_offsets, [place]))[place]
    ends = await run_to_end(executor, cluster.end_offsets, [place], is_committed_only=True)
    if ends[place] <= start:
        return False
    owners = Owners(own, place)
    reader = PartitionReader(
        settings,
        place,
        start,
        ends[place],
        is_committed_only=True,
        executor=executor,
        clock=clock,
    )
    try:
        await reader.open()
        while not reader.is_done:
            await reader.next(owners.take)
    finally:
        await reader.close()
    return owners.are_own
