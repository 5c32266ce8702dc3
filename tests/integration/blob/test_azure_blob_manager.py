"""The Azure client on a real server."""

import uuid
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.testing.blob_store_tests import BlobStoreManagerTests

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


class TestAzureManager(BlobStoreManagerTests):
    @pytest.fixture(autouse=True)
    def server(self, azure_container: ContainerClient) -> None:
        self.container = azure_container
        self.prefix = f"prefix/{uuid.uuid4().hex}"

    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        settings = {
            "uri": f"az://{self.container.container_name}/{self.prefix}",
            "part.bytes": "1MiB",
            "retry.policy.max.retries": "3",
        }
        factory = BlobBackendFactory(BackendName("blob"), settings)
        return factory.blob_store_manager(executor, SystemClock())

    @override
    def read_back(self, place: Path, blob_id: str) -> bytes:
        content: bytes = self.container.download_blob(f"{self.prefix}/{blob_id}").readall()
        return content
