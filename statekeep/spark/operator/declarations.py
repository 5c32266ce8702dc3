"""What a processor declares, checked on the driver before a query starts."""

import logging
import tempfile
from pathlib import Path

from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import StateBackupError
from statekeep.spark.operator.changes import ChangeWriter
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.handle import LocalHandle
from statekeep.spark.operator.variables import KeyCursor
from statekeep.stores.memory import MemoryStore

logger = logging.getLogger(__name__)


def check_declarations(
    processor: StatefulProcessor, key_schema: StructType, time_mode: TimeMode = TimeMode.NONE
) -> dict[str, int]:
    """Call ``init`` and ``close`` of a processor once, over a state that is empty and dropped.

    Spark does so too. Whatever else goes wrong is a warning: ``init`` may need what only executors
    have, and each task calls it again.

    Args:
        processor: A copy of the user's, for this call alone.
        key_schema: Of the grouping key.
        time_mode: Of its timers.

    Returns:
        How many variables of each kind it declares, by Spark's names of metrics.

    Raises:
        StateSchemaError: A state variable cannot be kept as it is declared.
        ConfigError: ``init`` uses what is not supported, or state.
    """
    with tempfile.TemporaryDirectory() as directory:
        store = MemoryStore(StoreName("state"), Path(directory) / "image", is_new=True)
        handle = LocalHandle(
            store, KeyCursor(), ChangeWriter(store), key_schema, time_mode=time_mode
        )
        try:
            processor.init(handle)
            handle.seal()
            processor.close()
        except StateBackupError:
            raise
        except Exception as exc:  # noqa: BLE001 - the user's code, where it may not run
            logger.warning(
                "init() or close() of the processor fails on the driver, so its tasks check what it"
                " declares: class=%s error=%r",
                type(processor).__name__,
                exc,
            )
        finally:
            handle.close()
        return handle.declared_counts
