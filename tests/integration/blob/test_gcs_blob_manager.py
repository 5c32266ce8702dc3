"""Google Cloud Storage through gcsfs, on an emulator that was taught ``ifGenerationMatch=0``."""

import asyncio
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

import pytest
from servers.gcs import GcsServer
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import PositionTakenError
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.errors import ConfigError
from statekeep.testing.blob_store_tests import BlobStoreManagerTests
from statekeep.testing.executor import SerialExecutor

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    # aiohttp, about a loop that gcsfs runs in a thread of its own.
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]

BUCKET = "statekeep"
RACERS = 8


def make_factory(server: GcsServer, prefix: str) -> BlobBackendFactory:
    settings = {
        "uri": f"gs://{BUCKET}/{prefix}",
        "storage.options.token": "anon",
        "storage.options.endpoint_url": server.endpoint,
        "retry.policy.max.retries": "3",
    }
    return BlobBackendFactory(BackendName("blob"), settings)


class TestGcsManager(BlobStoreManagerTests):
    @pytest.fixture(autouse=True)
    def server(self, gcs_server: GcsServer) -> None:
        self.gcs = gcs_server
        self.prefix = f"prefix/{uuid.uuid4().hex}"

    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        return make_factory(self.gcs, self.prefix).blob_store_manager(executor, SystemClock())

    @override
    def read_back(self, place: Path, blob_id: str) -> bytes:
        name = urllib.parse.quote(f"{self.prefix}/{blob_id}", safe="")
        url = f"{self.gcs.endpoint}/storage/v1/b/{BUCKET}/o/{name}?alt=media"
        with urllib.request.urlopen(url) as answer:  # noqa: S310  # of this machine
            content: bytes = answer.read()
        return content


@pytest.mark.asyncio
async def test_of_eight_racers_one_wins_each_position_of_the_job_log(
    gcs_server: GcsServer,
) -> None:
    executor = BoundedExecutor(RACERS, "race")
    factory = make_factory(gcs_server, uuid.uuid4().hex)
    logs = [factory.job_log("job", executor, SystemClock()) for _ in range(RACERS)]
    await logs[0].probe()
    for position in range(3):
        outcomes = await asyncio.gather(
            *(log.append(position, b"racer %d" % index) for index, log in enumerate(logs)),
            return_exceptions=True,
        )
        winners = [index for index, outcome in enumerate(outcomes) if outcome is None]
        losers = [each for each in outcomes if isinstance(each, PositionTakenError)]
        assert (len(winners), len(losers)) == (1, RACERS - 1)
        assert await logs[0].read(position) == [(position, b"racer %d" % winners[0])]
    for log in logs:
        await log.close()
    await executor.close()


@pytest.mark.asyncio
async def test_the_probe_of_the_job_log_notices_a_store_without_atomic_create(
    gcs_server_without_conditions: GcsServer,
) -> None:
    server = gcs_server_without_conditions
    log = make_factory(server, "log").job_log("job", SerialExecutor(), SystemClock())
    with pytest.raises(ConfigError, match="no atomic create"):
        await log.probe()
    await log.close()
