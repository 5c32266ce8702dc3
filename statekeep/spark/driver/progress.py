"""What a query's progress reports say of its stateful operator."""

from typing import Any

from statekeep.spark.driver.batch_loop import BatchStatistics
from statekeep.spark.driver.committer import CommitSummary


def operator_progress(
    done: BatchStatistics, partitions: int, commit: CommitSummary | None
) -> dict[str, Any]:
    """Return the entry of ``stateOperators`` for the newest batch."""
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
            "committedBatch": -1 if commit is None else commit.batch,
            "lastCommitBytes": 0 if commit is None else commit.bytes_uploaded,
        },
    }
