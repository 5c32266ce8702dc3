"""What a query's progress reports say of its stateful operator."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.streaming.listener import StateOperatorProgress

from statekeep.commit.committer import CommitSummary
from statekeep.spark.driver.batch_loop import BatchStatistics

NOT_MEASURED: Final = -1
"""Of a field of Spark's entry that this runtime does not count."""


def operator_progress(
    done: BatchStatistics,
    partitions: int,
    commit: CommitSummary | None,
    declared: Mapping[str, int],
    restarts: Mapping[str, object],
) -> StateOperatorProgress:
    """Return the entry of ``stateOperators`` for the newest batch.

    Args:
        done: The batch.
        partitions: How many tasks the job has.
        commit: The newest one.
        declared: What the processor declares, by Spark's names of metrics.
        restarts: Entries beside Spark's.
    """
    local, sizes, timed = done.local, done.local.sizes.values(), done.timed
    pause_ms = round(max(done.pauses_ns, default=0) / 1e6, 3)
    entry: dict[str, object] = {
        "operatorName": "statekeep",
        "numRowsTotal": NOT_MEASURED,
        "numRowsUpdated": done.changed_keys,
        "numRowsRemoved": NOT_MEASURED,
        "allUpdatesTimeMs": NOT_MEASURED,
        "allRemovalsTimeMs": NOT_MEASURED,
        "commitTimeMs": NOT_MEASURED,
        "memoryUsedBytes": NOT_MEASURED,
        "numRowsDroppedByWatermark": timed.late_rows,
        "numShufflePartitions": partitions,
        "numStateStoreInstances": partitions,
        "customMetrics": {
            **declared,
            "numRegisteredTimers": timed.registered_timers,
            "numDeletedTimers": timed.deleted_timers,
            "numExpiredTimers": timed.fired_timers,
            "numValuesRemovedDueToTTLExpiry": timed.expired_values,
            "rowsIn": done.rows_in,
            "rowsOut": done.rows_out,
            "maxSyncPauseMs": pause_ms,
            "localVersionHitCount": local.hits,
            "localVersionMissCount": local.misses,
            "localVersionCount": sum(task.versions for task in sizes),
            "localVersionsSizeBytes": sum(task.all_bytes for task in sizes),
            "stateOnCurrentVersionSizeBytes": sum(task.state_bytes for task in sizes),
            "committedBatch": -1 if commit is None else commit.batch,
            "lastCommitBytes": 0 if commit is None else commit.bytes_uploaded,
        },
        **restarts,
    }
    progress = StateOperatorProgress.fromJson(entry)
    progress.update(entry)  # pyright: ignore[reportUnknownMemberType] - a dict in pyspark
    return progress
