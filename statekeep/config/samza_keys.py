"""What stands in the ``.properties`` file of a Samza job besides state and commits.

Such a file is taken as it is: what concerns inputs, serdes, deployment and metrics is passed over,
as is what Statekeep does in a way of its own. Anywhere else these keys are errors like any unknown
key, since nobody would write them there but by mistake.
"""

from fnmatch import fnmatchcase
from typing import Final

from statekeep.config.key import STORE_HOLE
from statekeep.config.keys import UNSUPPORTED

FOREIGN: Final = (
    "app.*",
    "azure.storage.connect",
    "cluster-manager.*",
    "fs.*",
    "job.autosizing.*",
    "job.changelog.system",
    "job.checkpoint.validation.enabled",
    "job.config.*",
    "job.container.single.thread.mode",
    "job.coordinator.*",
    "job.debounce.time.ms",
    "job.default.system",
    "job.diagnostics.enabled",
    "job.factory.class",
    "job.jmx.enabled",
    "job.security.*",
    "job.systemstreampartition.*",
    "metrics.*",
    "processor.*",
    "sensitive.*",
    "serializers.*",
    "streams.*",
    "systems.*",
    "task.broadcast.inputs",
    "task.callback.*",
    "task.chooser.*",
    "task.command.class",
    "task.consumer.*",
    "task.drop.*",
    "task.execute",
    "task.ignored.exceptions",
    "task.java.home",
    "task.lifecycle.listener*",
    "task.log4j.*",
    "task.max.concurrency",
    "task.max.idle.ms",
    "task.name.grouper.factory",
    "task.opts",
    "task.poll.interval.ms",
    "task.producer.*",
    "task.shared.input.broadcast*",
    "task.window.ms",
    "yarn.*",
)
"""Settings of Samza that have to do with neither state nor commits."""

TUNING: Final = (
    "stores.*.accesslog.*",
    "stores.*.changelog.kafka.*",
    "stores.*.changelog.cleanup.policy",
    "stores.*.changelog.compression.type",
    "stores.*.changelog.max.message.bytes",
    "stores.*.changelog.max.message.size.bytes",
    "stores.*.changelog.min.cleanable.dirty.ratio",
    "stores.*.changelog.min.insync.replicas",
    "stores.*.changelog.retention.bytes",
    "stores.*.changelog.retention.ms",
    "stores.*.changelog.segment.bytes",
    "stores.*.changelog.segment.ms",
    "stores.*.disallow.large.messages",
    "stores.*.drop.large.messages",
    "stores.*.rocksdb.block.size.bytes",
    "stores.*.rocksdb.delete.obsolete.files.period.micros",
    "stores.*.rocksdb.keep.log.file.num",
    "stores.*.rocksdb.max.log.file.size.bytes",
    "stores.*.rocksdb.max.manifest.file.size",
    "stores.*.rocksdb.metrics.list",
    "stores.*.rocksdb.num.write.buffers",
)
"""Settings of Samza that tune how a store is kept, and change nothing of what it holds."""

RELIED_ON: Final = frozenset(
    {
        "stores.<store>.rocksdb.ttl.ms",
        "stores.<store>.side.inputs",
        "stores.<store>.side.inputs.processor.factory",
    }
)
"""Of the settings that are not supported those that a job counts on: refused everywhere."""


def why_passed_over(written: str) -> str | None:
    """Return why a key of a Samza job's file may be passed over; None: it may not."""
    for pattern, reason in UNSUPPORTED.items():
        if fnmatchcase(written, pattern.replace(STORE_HOLE, "*")):
            return None if pattern in RELIED_ON else reason
    if any(fnmatchcase(written, pattern) for pattern in FOREIGN):
        return "it has to do with neither state nor commits"
    if any(fnmatchcase(written, pattern) for pattern in TUNING):
        return "engines and topics are tuned by settings of Statekeep's own, and nothing is dropped"
    return None
