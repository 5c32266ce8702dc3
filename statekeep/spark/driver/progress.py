"""What a query's progress reports say of its stateful operator."""

from typing import Any

from statekeep.spark.driver.batch_loop import BatchStatistics
from statekeep.spark.driver.commit_summary import CommitSummary


def operator_progress(
    done: BatchStatistics, partitions: int, commit: CommitSummary | None
) -> dict[str, Any]:
    """Return the entry of ``stateOperators`` for the newest batch."""
    local, sizes = done.local, done.local.sizes.values()
    pause_ms = round(max(done.pauses_ns, default=0) / 1e6, 3)
    return {
        "operatorName": "statekeep",
        "numRowsUpdated": done.changed_keys,
        "numShufflePartitions": partitions,
        "numStateStoreInstances": partitions,
        "customMetrics": {
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
    }
