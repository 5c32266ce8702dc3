"""What a processor declares, checked on the driver before a query starts."""

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.errors import ConfigError, StateBackupError
from statekeep.spark.operator.changes import ChangeWriter
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.handle import LocalHandle
from statekeep.spark.operator.registry import REGISTRY_KEY
from statekeep.spark.operator.variables import KeyCursor
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.variable_stores import VariableStores
from statekeep.stores.memory import MemoryStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Declarations:
    """What ``init`` of a processor declares."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many state variables of each kind, by Spark's names of metrics."""
    variables: frozenset[str] | None = None
    """The state variables that it declares or deletes; None where ``init`` fails on the driver."""


def check_declarations(
    processor: StatefulProcessor,
    key_schema: StructType,
    time_mode: TimeMode = TimeMode.NONE,
    registries: Mapping[StoreName, bytes] | None = None,
    *,
    operator: str = MAIN_OPERATOR,
    variable_stores: VariableStores | None = None,
) -> Declarations:
    """Call ``init`` and ``close`` of a processor once, over a state that is empty and dropped.

    Spark does so too. Whatever else goes wrong is a warning: ``init`` may need what only executors
    have, and each task calls it again.

    Args:
        processor: A copy of the user's, for this call alone.
        key_schema: Of the grouping key.
        time_mode: Of its timers.
        registries: The variables of a task's stored state, as each store has them under
            ``REGISTRY_KEY``; None: there is no state yet.
        operator: Its name, for errors.
        variable_stores: Which variables are in which store.

    Raises:
        StateSchemaError: A state variable cannot be kept as it is declared, or its stored values
            cannot be read as it is declared.
        ConfigError: ``init`` uses what is not supported, or state.
    """
    with tempfile.TemporaryDirectory() as directory:
        variable_stores = variable_stores or VariableStores()
        stores = {
            name: MemoryStore(name, Path(directory) / name, is_new=True)
            for name in {STATE_STORE, *variable_stores.stores.values(), *(registries or ())}
        }
        for name, registry in (registries or {}).items():
            stores[name].put(REGISTRY_KEY, registry)
        store = stores.pop(STATE_STORE)
        handle = LocalHandle(
            store,
            KeyCursor(),
            ChangeWriter(store),
            key_schema,
            time_mode=time_mode,
            operator=operator,
            others=stores,
            variable_stores=variable_stores,
        )
        is_known = False
        try:
            processor.init(handle)
            handle.seal()
            is_known = True
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
        return Declarations(handle.declared_counts, handle.variables if is_known else None)


def check_order(
    declared: Mapping[str, frozenset[str]], stored: Mapping[str, frozenset[str]]
) -> None:
    """Refuse operators that have the state of each other.

    Args:
        declared: By operator, the state variables that it declares or deletes.
        stored: By operator, those that it has data of.

    Raises:
        ConfigError: An operator has a variable that it no longer declares and another one does. The other
            one has such a variable of the first one too, or nothing of what it declares.
    """
    dropped = {name: of - declared[name] for name, of in stored.items()}
    for name, other in permutations(stored, 2):
        if dropped[name] & declared[other] and (
            dropped[other] & declared[name] or not stored[other] & declared[other]
        ):
            raise ConfigError(
                "two stateful operators of the query seem to be swapped:"
                f" operator={name} stored={','.join(sorted(stored[name]))}"
                f" declared={','.join(sorted(declared[name]))} declared_by={other}",
                hint="put the operators back into the order that the job began with; if you renamed"
                " variables instead, call handle.deleteIfExists in init for each former name",
            )
