"""Google Cloud Storage through gcsfs, on an emulator.

The emulator takes no notice of ``ifGenerationMatch``, by which gcsfs creates atomically. So the
tests of atomic create prove nothing here and are left out: that the probe notices is tested instead.
"""

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
from statekeep.clock import SystemClock
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
NO_ATOMIC_CREATE = "the emulator does not enforce ifGenerationMatch"


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

    @pytest.mark.skip(reason=NO_ATOMIC_CREATE)
    @override
    async def test_a_name_that_is_taken_is_refused_and_left_alone(
        self, manager: BlobStoreManager
    ) -> None: ...

    @pytest.mark.skip(reason=NO_ATOMIC_CREATE)
    @override
    async def test_of_racing_creates_exactly_one_succeeds(
        self, place: Path, executor: BlockingExecutor
    ) -> None: ...


@pytest.mark.asyncio
async def test_the_probe_of_the_job_log_notices_a_store_without_atomic_create(
    gcs_server: GcsServer,
) -> None:
    log = make_factory(gcs_server, "log").job_log("job", SerialExecutor(), SystemClock())
    with pytest.raises(ConfigError, match="no atomic create"):
        await log.probe()
    await log.close()
