"""The job log and the checkpoint store in real object stores."""

import asyncio
import uuid

import pytest
from azure.storage.blob import ContainerClient
from servers.seaweedfs import S3Server

from statekeep.backends.blob.checkpoint_store import BlobCheckpointStore
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.job_log import BlobJobLog
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.retry import Retrier, RetryPolicy
from statekeep.backends.wrappers import RetryingBlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.checkpoint.job_log import PositionTakenError
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults.blob_faults import Fault, FaultPlan, FaultyBlobStoreManager

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

RACERS = 8


@pytest.fixture(params=["s3", "azure"])
def factory(request: pytest.FixtureRequest) -> BlobBackendFactory:
    prefix = uuid.uuid4().hex
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        bucket = request.getfixturevalue("s3_bucket")
        settings = {"uri": f"s3://{bucket}/{prefix}", "s3.endpoint": server.endpoint}
    else:
        container: ContainerClient = request.getfixturevalue("azure_container")
        settings = {"uri": f"az://{container.container_name}/{prefix}"}
    return BlobBackendFactory(BackendName("blob"), settings)


def losing_answers(factory: BlobBackendFactory) -> BlobStoreManager:
    """A manager whose first put lands and raises, and is repeated."""
    plan = FaultPlan([Fault("put", moment="after")])
    inner = FaultyBlobStoreManager(
        factory.blob_store_manager(SerialExecutor(), SystemClock()), plan
    )
    retrier = Retrier(RetryPolicy(), FakeClock())
    return RetryingBlobStoreManager(inner, retrier, SerialExecutor())


@pytest.mark.asyncio
async def test_the_probe_finds_that_the_store_can_hold_the_log(factory: BlobBackendFactory) -> None:
    log = factory.job_log("job", SerialExecutor(), SystemClock())
    await log.probe()
    await log.close()


@pytest.mark.asyncio
async def test_the_admin_finds_the_place_in_order(factory: BlobBackendFactory) -> None:
    admin = factory.admin(SerialExecutor(), SystemClock())
    await admin.create_resources()
    await admin.validate_resources()
    await admin.close()


@pytest.mark.asyncio
async def test_of_eight_racers_one_wins_each_position(factory: BlobBackendFactory) -> None:
    executor = BoundedExecutor(RACERS, "race")
    logs = [factory.job_log("job", executor, SystemClock()) for _ in range(RACERS)]
    for position in range(5):
        outcomes = await asyncio.gather(
            *(log.append(position, b"racer %d" % index) for index, log in enumerate(logs)),
            return_exceptions=True,
        )
        assert [
            o for o in outcomes if o is not None and not isinstance(o, PositionTakenError)
        ] == []
        winners = [index for index, outcome in enumerate(outcomes) if outcome is None]
        assert len(winners) == 1
        assert await logs[0].read(position) == [(position, b"racer %d" % winners[0])]
    for log in logs:
        await log.close()
    await executor.close()


@pytest.mark.asyncio
async def test_an_append_that_landed_unheard_is_there_once_and_told_as_taken(
    factory: BlobBackendFactory,
) -> None:
    log = BlobJobLog(losing_answers(factory), "job")
    with pytest.raises(PositionTakenError):
        await log.append(0, b"mine")
    assert await log.read(0) == [(0, b"mine")]
    await log.close()


@pytest.mark.asyncio
async def test_a_task_checkpoint_that_landed_unheard_is_there_once(
    factory: BlobBackendFactory,
) -> None:
    store = BlobCheckpointStore(losing_answers(factory), "job")
    task = TaskName("Partition 0")
    await store.write("1-1", task, b"checkpoint")
    assert await store.read("1-1") == {task: b"checkpoint"}
    await store.delete("1-1")
    assert await store.read("1-1") == {}
    await store.close()
