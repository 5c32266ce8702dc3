"""Asynchronous, pluggable backup and exact restore of the state of stateful streams.

``import statekeep as sk`` has the names that a program needs; ``docs/reference/api.md`` describes
them, and the few modules for authors of backends. Everything else is private.

A name is loaded when it is asked for: workers, sidecars and the command line import this package
as well, and need few of them. A name that needs a missing package raises ConfigError with the
command that installs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from statekeep.checkpoint.checkpoints import SystemStreamPartition
    from statekeep.config.load import load_dict, load_file, load_job
    from statekeep.config.model import Config
    from statekeep.container.container import Container
    from statekeep.container.task import Task
    from statekeep.errors import (
        BackendClosedError,
        BlobExistsError,
        BlobNotFoundError,
        CheckpointCorruptError,
        CheckpointLocationError,
        CommitFailedError,
        ConfigError,
        KeyUnavailableError,
        ReplayDivergedError,
        RestoreFailedError,
        RetriableError,
        StateBackupError,
        StateSchemaError,
        TaskFencedError,
        ThrottledError,
        UnknownFormatError,
        VersionDamagedError,
    )
    from statekeep.events import Event, EventSource, Listener
    from statekeep.inspection.cloning import Clone
    from statekeep.spark.batch_replay.replay import replay_batch
    from statekeep.spark.batch_replay.result import ReplayedBatch
    from statekeep.spark.batch_token import BatchToken, current_batch
    from statekeep.spark.clones import clone, drop_clone, promote_clone
    from statekeep.spark.doctor import Diagnosis, doctor
    from statekeep.spark.fenced_sinks import batch_directory_sink, fence_transaction, upsert_sink
    from statekeep.spark.grouped_data import StatefulGroupedData, grouped
    from statekeep.spark.operator.arrow_state import ArrowValueState
    from statekeep.spark.query import StatefulStreamingQuery
    from statekeep.spark.query_guard import QueryGuard, guard
    from statekeep.spark.session import check_session, session_builder
    from statekeep.spark.starting_point import StartingPoint, find_starting_point
    from statekeep.spark.state.source import register
    from statekeep.spark.state_import import ImportedState, import_spark_state
    from statekeep.spark.state_listener import state_listener
    from statekeep.spark.state_reader import (
        read_state,  # pyright: ignore[reportUnknownVariableType] - pyarrow has no types
    )
    from statekeep.spark.state_writer import write_state
    from statekeep.stores.base import KeyValueStore

    __version__: str
    """The version that is installed."""

__all__ = [
    "ArrowValueState",
    "BackendClosedError",
    "BatchToken",
    "BlobExistsError",
    "BlobNotFoundError",
    "CheckpointCorruptError",
    "CheckpointLocationError",
    "Clone",
    "CommitFailedError",
    "Config",
    "ConfigError",
    "Container",
    "Diagnosis",
    "Event",
    "EventSource",
    "ImportedState",
    "KeyUnavailableError",
    "KeyValueStore",
    "Listener",
    "QueryGuard",
    "ReplayDivergedError",
    "ReplayedBatch",
    "RestoreFailedError",
    "RetriableError",
    "StartingPoint",
    "StateBackupError",
    "StateSchemaError",
    "StatefulGroupedData",
    "StatefulStreamingQuery",
    "SystemStreamPartition",
    "Task",
    "TaskFencedError",
    "ThrottledError",
    "UnknownFormatError",
    "VersionDamagedError",
    "batch_directory_sink",
    "check_session",
    "clone",
    "current_batch",
    "doctor",
    "drop_clone",
    "fence_transaction",
    "find_starting_point",
    "grouped",
    "guard",
    "import_spark_state",
    "load_dict",
    "load_file",
    "load_job",
    "promote_clone",
    "read_state",
    "register",
    "replay_batch",
    "session_builder",
    "state_listener",
    "upsert_sink",
    "write_state",
]

_HOMES: Final = {
    "checkpoint.checkpoints": ("SystemStreamPartition",),
    "config.load": ("load_dict", "load_file", "load_job"),
    "config.model": ("Config",),
    "container.container": ("Container",),
    "container.task": ("Task",),
    "errors": (
        "BackendClosedError",
        "BlobExistsError",
        "BlobNotFoundError",
        "CheckpointCorruptError",
        "CheckpointLocationError",
        "CommitFailedError",
        "ConfigError",
        "KeyUnavailableError",
        "ReplayDivergedError",
        "RestoreFailedError",
        "RetriableError",
        "StateBackupError",
        "StateSchemaError",
        "TaskFencedError",
        "ThrottledError",
        "UnknownFormatError",
        "VersionDamagedError",
    ),
    "events": ("Event", "EventSource", "Listener"),
    "inspection.cloning": ("Clone",),
    "spark.batch_replay.replay": ("replay_batch",),
    "spark.batch_replay.result": ("ReplayedBatch",),
    "spark.batch_token": ("BatchToken", "current_batch"),
    "spark.clones": ("clone", "drop_clone", "promote_clone"),
    "spark.doctor": ("Diagnosis", "doctor"),
    "spark.fenced_sinks": ("batch_directory_sink", "fence_transaction", "upsert_sink"),
    "spark.grouped_data": ("StatefulGroupedData", "grouped"),
    "spark.operator.arrow_state": ("ArrowValueState",),
    "spark.query": ("StatefulStreamingQuery",),
    "spark.query_guard": ("QueryGuard", "guard"),
    "spark.session": ("check_session", "session_builder"),
    "spark.starting_point": ("StartingPoint", "find_starting_point"),
    "spark.state.source": ("register",),
    "spark.state_import": ("ImportedState", "import_spark_state"),
    "spark.state_listener": ("state_listener",),
    "spark.state_reader": ("read_state",),
    "spark.state_writer": ("write_state",),
    "stores.base": ("KeyValueStore",),
}
"""``{module of this package: its public names}``"""

if not TYPE_CHECKING:  # a checker of types would take any name for one of these

    def __getattr__(name: str) -> object:
        if name == "__version__":
            # Not at import: a worker may have the modules without the metadata.
            return import_module("importlib.metadata").version("statekeep")
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"statekeep.{home}"), name)
        except ModuleNotFoundError as exc:
            missing = import_module("statekeep.extras").missing_package(exc)
            if missing is None:
                raise
            raise missing from exc


def __dir__() -> list[str]:
    return sorted(__all__)
