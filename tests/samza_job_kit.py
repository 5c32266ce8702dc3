"""A job of Samza with its `.properties` file, and what of it is changed to run here."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.model import Config
from statekeep.container.container import Container

SAMZA_FILE: Final = """\
# Application / Job
app.name=page-view-counter
app.id=2
app.class=com.example.PageViewCounter
job.factory.class=org.apache.samza.job.yarn.YarnJobFactory
job.default.system=kafka
job.container.count=4
job.host-affinity.enabled=true
job.jmx.enabled=true
job.logged.store.base.dir=/data/state
job.container.commit.thread.pool.max.size=16

yarn.package.path=file:///packages/page-view-counter.tar.gz
cluster-manager.container.memory.mb=2048

task.inputs=kafka.page-views
task.window.ms=10000
task.callback.timeout.ms=60000
task.commit.ms=30000
task.commit.max.delay.ms=120000
task.checkpoint.factory=org.apache.samza.checkpoint.kafka.KafkaCheckpointManagerFactory
task.checkpoint.system=kafka
task.checkpoint.replication.factor=1
task.checkpoint.write.versions=1,2
task.checkpoint.read.versions=2,1
task.transactional.state.restore.enabled=true

serializers.registry.string.class=org.apache.samza.serializers.StringSerdeFactory
systems.kafka.samza.factory=org.apache.samza.system.kafka.KafkaSystemFactory
systems.kafka.consumer.zookeeper.connect=zookeeper:2181
systems.kafka.producer.bootstrap.servers=broker:9092
systems.kafka.default.stream.replication.factor=1
sensitive.systems.kafka.consumer.password=hush
metrics.reporters=jmx

stores.views.factory=org.apache.samza.storage.kv.RocksDbKeyValueStorageEngineFactory
stores.views.key.serde=string
stores.views.msg.serde=string
stores.views.object.cache.size=1000
stores.views.write.batch.size=500
stores.views.rocksdb.block.size.bytes=4096
stores.views.backup.factories=org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory
stores.views.restore.factories=org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory

blob.store.manager.factory=com.example.blobs.ShopBlobStoreManagerFactory
blob.store.admin.factory=com.example.blobs.ShopBlobStoreAdminFactory
blob.store.retry.policy.max.retries=5
"""
"""As it ran under Samza, with its state in a blob store; ``com.example`` is the job's own."""

_BLOB: Final = "org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory"
_KAFKA: Final = "org.apache.samza.storage.KafkaChangelogStateBackendFactory"
SAMZA_FILE_OF_BOTH: Final = SAMZA_FILE.replace(
    f"backup.factories={_BLOB}", f"backup.factories={_KAFKA},\\\n    {_BLOB}"
).replace(
    f"restore.factories={_BLOB}",
    f"restore.factories={_BLOB},\\\n    {_KAFKA}\n"
    "stores.views.changelog=kafka.views-changelog\n"
    "stores.views.changelog.replication.factor=1",
)
"""The same, with its state in a changelog as well."""

OWN_CLASSES: Final = {
    "com.example.blobs.ShopBlobStoreManagerFactory": "samza_job_kit:make_manager",
}
"""What has to be changed: the job's own classes, where they have a counterpart."""

VIEWS: Final = SystemStreamPartition("kafka", "page-views", 0)
BLOBS: Final = "SHOP_BLOBS"
"""The environment variable by which the job's own client knows its place, as in Samza."""


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """The job's own client of its blob store; ``uri`` is another place that a test has given."""
    return FsspecBlobStoreManager(settings.get("uri", os.environ[BLOBS]), {}, executor)


def write_job(
    directory: Path,
    text: str = SAMZA_FILE,
    *,
    classes: Mapping[str, str] = OWN_CLASSES,
    brokers: str = "broker:9092",
) -> Path:
    """Write the job's file with the names of its own classes changed, and nothing else.

    But for the places of the test: its local disk and its brokers.
    """
    for samza, ours in classes.items():
        text = text.replace(samza, ours)
    text = text.replace("/data/state", str(directory / "local")).replace("broker:9092", brokers)
    path = directory / "job.properties"
    path.write_text(text, encoding="utf-8")
    return path


async def count_views(config: Config, *pages: str) -> tuple[dict[bytes, bytes], str | None]:
    """Be the job until it has counted these pages; return the state and offset it began with."""
    async with Container(config) as container:
        task = await container.start_task("Partition 0", ["views"])
        views = task.store("views")
        found, offset = dict(views.scan()), task.input_offsets.get(VIEWS)
        last = int(offset or -1)
        for page in pages:
            views.put(page.encode(), str(int(views.get(page.encode()) or 0) + 1).encode())
            last += 1
            commit = await task.commit({VIEWS: str(last)}, force=True)
            await commit.wait()
    return found, offset
