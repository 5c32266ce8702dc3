"""The S3 client on a real server."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from servers.seaweedfs import S3Server
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.testing.blob_store_tests import BlobStoreManagerTests

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


class TestS3Manager(BlobStoreManagerTests):
    @pytest.fixture(autouse=True)
    def server(self, s3_server: S3Server, s3_api: Any, s3_bucket: str) -> None:
        self.endpoint, self.api, self.bucket = s3_server.endpoint, s3_api, s3_bucket
        self.prefix = f"prefix/{uuid.uuid4().hex}"

    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        settings = {
            "uri": f"s3://{self.bucket}/{self.prefix}",
            "s3.endpoint": self.endpoint,
            "part.bytes": "5MiB",
            "retry.policy.max.retries": "3",
        }
        factory = BlobBackendFactory(BackendName("blob"), settings)
        return factory.blob_store_manager(executor, SystemClock())

    @override
    def read_back(self, place: Path, blob_id: str) -> bytes:
        answer = self.api.get_object(Bucket=self.bucket, Key=f"{self.prefix}/{blob_id}")
        with answer["Body"] as body:
            content: bytes = body.read()
        return content
