"""Three nodes of which one dies: commits, restores and the job log go on without it."""

import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import KafkaError, KafkaException
from kafka_kit import ChangelogJob, Interrupting
from servers.kafka import KafkaCluster

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError, RetriableError, TaskFencedError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITION = 2
CHANGES = {b"%d" % n: b"1" for n in range(5_000)}
MORE = {b"%d" % n: b"2" for n in range(0, 5_000, 2)}


@pytest_asyncio.fixture
async def job(
    cluster: KafkaCluster, interrupting: Interrupting, tmp_path: Path
) -> AsyncGenerator[ChangelogJob]:
    made = ChangelogJob(cluster.servers, tmp_path, uuid.uuid4().hex, executor=interrupting)
    yield made
    await made.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["_enqueue", "commit_transaction"])
@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
async def test_a_node_that_dies_in_the_middle_of_a_commit_is_not_missed(
    job: ChangelogJob,
    interrupting: Interrupting,
    cluster: KafkaCluster,
    step: str,
    is_leader: bool,  # noqa: FBT001 - a case of the table
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, CHANGES)
    leader = cluster.leader(job.topic, PARTITION)
    victims = [node for node in cluster.nodes.values() if (node is leader) is is_leader]
    interrupting.arm(step, victims[0].kill)
    commit = await job.commit(manager, MORE)
    assert interrupting.has_struck
    assert await job.restore(base.checkpoint) == base.content
    assert await job.restore(commit.checkpoint) == commit.content


@pytest.mark.asyncio
async def test_a_leader_that_dies_in_the_middle_of_a_restore_is_not_missed(
    job: ChangelogJob, interrupting: Interrupting, cluster: KafkaCluster
) -> None:
    commit = await job.commit(await job.manager(), {b"%d" % n: b"x" * 500 for n in range(100_000)})
    interrupting.arm("_step", cluster.leader(job.topic, PARTITION).kill, nth=4)
    assert await job.sipping().restore(commit.checkpoint) == commit.content
    assert interrupting.has_struck


@pytest.mark.asyncio
async def test_a_leader_that_dies_just_before_a_restore_is_not_missed(
    job: ChangelogJob, interrupting: Interrupting, cluster: KafkaCluster
) -> None:
    commit = await job.commit(await job.manager(), CHANGES)
    interrupting.arm("_find", cluster.leader(job.topic, PARTITION).kill)
    assert await job.restore(commit.checkpoint) == commit.content
    assert interrupting.has_struck


@pytest.mark.asyncio
async def test_everything_goes_on_while_every_node_restarts_in_turn(
    job: ChangelogJob, cluster: KafkaCluster, interrupting: Interrupting
) -> None:
    log = job.factory.job_log(f"{job.task.job_name}/main", interrupting, SystemClock())
    store = job.factory.checkpoint_store(job.task.job_name, interrupting, SystemClock())
    await log.probe()
    manager = await job.manager()
    commits = [await job.commit(manager, CHANGES)]
    for node in cluster.nodes.values():
        for change in (node.kill, cluster.start_missing):
            change()
            step = b"%d" % len(commits)
            await log.append(len(commits) - 1, step)
            await store.write("1-1", TaskName("Partition 0"), step)
            assert await store.read("1-1") == {"Partition 0": step}
            commits.append(await job.commit(manager, {b"step": step, b"new": step}))
    for commit in commits:
        assert await job.restore(commit.checkpoint) == commit.content
    assert [data for _, data in await log.read(0)] == [b"%d" % n for n in range(1, len(commits))]
    await log.close()
    await store.close()


@pytest.mark.asyncio
async def test_too_few_replicas_in_sync_hold_a_commit_up_until_the_node_is_back(
    job: ChangelogJob, interrupting: Interrupting, cluster: KafkaCluster
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, CHANGES)
    job.configure_topic(min_insync_replicas="3")
    leader = cluster.leader(job.topic, PARTITION)
    next(node for node in cluster.nodes.values() if node is not leader).kill()
    hasty = ChangelogJob(
        job.servers,
        job.versions.root,
        job.task.job_name,
        executor=interrupting,
        timeout_ms="5000",
        retry_max_duration_ms="0",
    )
    hasty.continue_after(base)
    with pytest.raises(RetriableError):
        await hasty.commit(await hasty.manager(), MORE)
    await hasty.close()
    assert await job.restore(base.checkpoint) == base.content
    # The library reports the refused records while it waits; then the node comes back.
    interrupting.arm("commit_transaction", cluster.start_missing, nth=2)
    commit = await job.commit(manager, MORE)
    assert await job.restore(commit.checkpoint) == commit.content


@pytest.mark.asyncio
async def test_a_transaction_that_times_out_in_the_middle_is_written_again(
    cluster: KafkaCluster, interrupting: Interrupting, tmp_path: Path
) -> None:
    job = ChangelogJob(
        cluster.servers,
        tmp_path,
        uuid.uuid4().hex,
        executor=interrupting,
        transaction_timeout_ms="1000",
    )
    manager = await job.manager()
    base = await job.commit(manager, CHANGES)
    before = job.end_offset()

    def outlast() -> None:
        """Return once the cluster has put an end to the open transaction."""
        while job.end_offset() == before:
            continue

    interrupting.arm("commit_transaction", outlast)
    commit = await job.commit(manager, MORE)
    assert interrupting.has_struck
    assert await job.restore(base.checkpoint) == base.content
    assert await job.restore(commit.checkpoint) == commit.content
    await job.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["_enqueue", "commit_transaction"])
async def test_a_zombie_in_the_middle_of_a_commit_loses_the_id_again(
    job: ChangelogJob, interrupting: Interrupting, step: str
) -> None:
    manager = await job.manager()
    await job.commit(manager, CHANGES)
    zombies = []

    def wake() -> None:
        zombies.append(job.zombie())
        job.write(zombies[0], [(b"0", b"zombie"), (b"z", b"zombie")], end=None)

    interrupting.arm(step, wake)
    commit = await job.commit(manager, MORE)
    assert interrupting.has_struck
    assert await job.restore(commit.checkpoint) == commit.content
    with pytest.raises(KafkaException) as caught:
        zombies[0].commit_transaction(30)
    assert caught.value.args[0].code() in {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


@pytest.mark.asyncio
async def test_the_successor_in_the_middle_of_a_commit_ends_the_older_writer(
    job: ChangelogJob, interrupting: Interrupting
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, CHANGES)

    def succeed() -> None:
        successor = job.zombie()
        job.write(successor, [(b"0", b"newer")], headers={"statekeep": b"77aa 2 1"})

    interrupting.arm("commit_transaction", succeed)
    with pytest.raises(TaskFencedError) as caught:
        await job.upload(manager, job.seal(MORE))
    assert (caught.value.own_epoch, caught.value.newer_epoch) == (1, 2)
    assert await job.restore(base.checkpoint) == base.content


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["start_offsets", "_enqueue", "commit_transaction"])
async def test_a_topic_recreated_in_the_middle_of_a_commit_is_filled_anew(
    job: ChangelogJob, interrupting: Interrupting, step: str
) -> None:
    manager = await job.manager()
    await job.commit(manager, CHANGES)
    interrupting.arm(step, job.recreate_topic)
    commit = await job.commit(manager, MORE)
    assert interrupting.has_struck
    assert await job.restore(commit.checkpoint) == commit.content


@pytest.mark.asyncio
async def test_topics_get_the_replicas_that_were_asked_for(
    cluster: KafkaCluster, interrupting: Interrupting, tmp_path: Path
) -> None:
    one = ChangelogJob(
        cluster.servers, tmp_path, uuid.uuid4().hex, executor=interrupting, replication_factor="1"
    )
    await one.commit(await one.manager(), CHANGES)
    await one.close()
    three = ChangelogJob(
        cluster.servers,
        tmp_path,
        one.task.job_name,
        executor=interrupting,
        replication_factor="3",
    )
    with pytest.raises(ConfigError, match=r"replicas=1 needed=3"):
        await three.manager()
    await three.close()
