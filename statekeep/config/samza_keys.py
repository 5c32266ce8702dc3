"""What stands in the ``.properties`` file of a Samza job besides state and commits.

Such a file is taken as it is: what concerns inputs, serdes, deployment and metrics is passed over,
as is what Statekeep does in a way of its own. What a job counts on and does not get is refused.
Anywhere else these keys are errors like any unknown key, since nobody would write them there but by
mistake.
"""

import logging
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from statekeep.config.key import STORE_HOLE
from statekeep.config.keys import UNSUPPORTED

logger = logging.getLogger(__name__)

FOREIGN: Final = (
    "app.*",
    "azure.storage.connect",
    "cluster-manager.*",
    "fs.*",
    "job.autosizing.*",
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
    "stores.*.changelog.cleanup.policy",
    "stores.*.changelog.compression.type",
    "stores.*.changelog.max.message.bytes",
    "stores.*.changelog.max.message.size.bytes",
    "stores.*.changelog.min.cleanable.dirty.ratio",
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
        "stores.<store>.changelog.kafka.min.compaction.lag.ms",
        "stores.<store>.rocksdb.ttl.ms",
        "stores.<store>.side.inputs",
        "stores.<store>.side.inputs.processor.factory",
    }
)
"""Of the settings that are not supported those that a job counts on: refused everywhere."""

GIVEN: Final = MappingProxyType(
    {
        "job.changelog.system": "kafka",
        "task.transactional.state.restore.enabled": "true",
        "task.transactional.state.retain.existing.state": "false",
    }
)
"""Of the settings that are not supported those that say what is done here anyway, with one value; with
any other one a job counts on something else, and it is refused."""

_OF_TOPICS: Final = "topics get what a restore needs; give them more with kafka-configs"
MISSED: Final = MappingProxyType(
    {
        "job.non-logged.store.base.dir": UNSUPPORTED["job.non-logged.store.base.dir"],
        "job.standbytasks.replication.factor": UNSUPPORTED["job.standbytasks.replication.factor"],
        "stores.*.changelog.kafka.*": _OF_TOPICS,
        "stores.*.changelog.min.insync.replicas": _OF_TOPICS,
        "systems.*.default.stream.replication.factor": "no backend has the name of this system; set "
        "replication.factor below backends.<backend>",
    }
)
"""Of what is passed over that which somebody may look for in vain, and why: a warning says so."""


def pass_over(written: str, value: str, source: str) -> bool:
    """Return whether a setting of a Samza job's file may be passed over, and note it in the log."""
    reason = why_passed_over(written, value)
    if reason is None:
        return False
    logger.log(
        logging.INFO if _why_missed(written) is None else logging.WARNING,
        "setting is passed over: key=%s source=%s reason=%s",
        written,
        source,
        reason,
    )
    return True


def why_passed_over(written: str, value: str) -> str | None:
    """Return why a setting of a Samza job's file may be passed over; None: it may not."""
    for pattern, reason in UNSUPPORTED.items():
        if fnmatchcase(written, pattern.replace(STORE_HOLE, "*")):
            is_other = value.strip().lower() != GIVEN.get(pattern, value.strip().lower())
            return None if is_other or pattern in RELIED_ON else reason
    missed = _why_missed(written)
    if missed is not None:
        return missed
    if any(fnmatchcase(written, pattern) for pattern in FOREIGN):
        return "it has to do with neither state nor commits"
    if any(fnmatchcase(written, pattern) for pattern in TUNING):
        return "engines and topics are tuned by settings of Statekeep's own, and nothing is dropped"
    return None


def _why_missed(written: str) -> str | None:
    return next((why for name, why in MISSED.items() if fnmatchcase(written, name)), None)
