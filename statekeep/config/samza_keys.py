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
    "cluster-manager.*",
    "job.autosizing.*",
    "job.changelog.system",
    "job.config.*",
    "job.coordinator.*",
    "job.default.system",
    "job.factory.class",
    "job.security.*",
    "job.systemstreampartition.*",
    "metrics.*",
    "processor.*",
    "serializers.*",
    "streams.*",
    "systems.*",
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
    return None
