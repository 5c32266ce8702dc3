"""The job log and the checkpoint store in real object stores."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio
from azure.storage.blob import ContainerClient
from servers.azurite import AzureServer
from servers.gcs import GcsServer
from servers.relay import LostAnswer
from servers.seaweedfs import S3Server

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.checkpoint.job_log import PositionTakenError
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

RACERS = 8


@dataclass
class Place:
    """A new place on a server, which may be reached by another port than the server's own."""

    server_port: int
    settings_by: Callable[[int], dict[str, str]]

    def factory(self, port: int) -> BlobBackendFactory:
        return BlobBackendFactory(BackendName("blob"), self.settings_by(port))


def s3_place(request: pytest.FixtureRequest, prefix: str) -> Place:
    server: S3Server = request.getfixturevalue("s3_server")
    uri = f"s3://{request.getfixturevalue('s3_bucket')}/{prefix}"
    return Place(server.port, lambda port: {"uri": uri, "s3.endpoint": f"http://127.0.0.1:{port}"})


def azure_place(request: pytest.FixtureRequest, prefix: str) -> Place:
    server: AzureServer = request.getfixturevalue("azure_server")
    container: ContainerClient = request.getfixturevalue("azure_container")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")

    def settings(port: int) -> dict[str, str]:
        reached = replace(server, port=port).connection_string
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", reached)
        return {"uri": f"az://{container.container_name}/{prefix}"}

    return Place(server.port, settings)


def gcs_place(request: pytest.FixtureRequest, prefix: str) -> Place:
    server: GcsServer = request.getfixturevalue("gcs_server")
    settings = {"uri": f"gs://statekeep/{prefix}", "storage.options.token": "anon"}
    return Place(
        server.port,
        lambda port: settings | {"storage.options.endpoint_url": f"http://127.0.0.1:{port}"},
    )


@pytest.fixture(params=[s3_place, azure_place, gcs_place], ids=["s3", "azure", "gcs"])
def place(request: pytest.FixtureRequest) -> Place:
    make: Callable[[pytest.FixtureRequest, str], Place] = request.param
    return make(request, uuid.uuid4().hex)


@pytest.fixture
def factory(place: Place) -> BlobBackendFactory:
    return place.factory(place.server_port)


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


@pytest_asyncio.fixture
async def executor() -> AsyncIterator[BoundedExecutor]:
    executor = BoundedExecutor(RACERS, "log")
    yield executor
    await executor.close()


@pytest.mark.asyncio
async def test_an_append_whose_answer_was_lost_is_there_once_and_reported_as_taken(
    place: Place, executor: BoundedExecutor
) -> None:
    async with LostAnswer(place.server_port, b"mine") as relay:
        log = place.factory(relay.port).job_log("job", executor, SystemClock())
        with pytest.raises(PositionTakenError):
            await log.append(0, b"mine")
        assert relay.is_lost
        assert await log.read(0) == [(0, b"mine")]
        await log.close()


@pytest.mark.asyncio
async def test_a_task_checkpoint_that_landed_unheard_is_there_once(
    place: Place, executor: BoundedExecutor
) -> None:
    async with LostAnswer(place.server_port, b"the checkpoint") as relay:
        checkpoints = place.factory(relay.port).checkpoint_store("job", executor, SystemClock())
        task = TaskName("Partition 0")
        await checkpoints.write("1-1", task, b"the checkpoint")
        assert relay.is_lost
        assert await checkpoints.read("1-1") == {task: b"the checkpoint"}
        blobs = place.factory(relay.port).blob_store_manager(executor, SystemClock())
        await blobs.init()
        assert len(await blobs.list("job/checkpoints/")) == 1
        await blobs.close()
        await checkpoints.delete("1-1")
        assert await checkpoints.read("1-1") == {}
        await checkpoints.close()
