"""Writes state variables of a stopped job: rows are checked, routed, and put by the processor's own code."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, cast

from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, StateChange
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import OpenJob, open_job
from statekeep.inspection.state_change import (
    Changed,
    Changing,
    Edit,
    change_state,
    find_changeable,
    person,
)
from statekeep.inspection.task_restore import stores_of
from statekeep.spark.driver.location import parse_batch_time
from statekeep.spark.operator.changes import ChangeWriter
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.handle import LocalHandle
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.registry import read_schema, stored_variables
from statekeep.spark.operator.scalars import MisfitError
from statekeep.spark.operator.timers import TIMER_NAMES
from statekeep.spark.operator.variables import KeyCursor
from statekeep.spark.state.keys import KeyRouter
from statekeep.spark.state.plan import StatePlan, StateRequest, plan_state
from statekeep.spark.state.store import ByteKeys
from statekeep.spark.state.variable import StateRow
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.variable_stores import VariableStores
from statekeep.stores.base import KeyValueStore
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.stores.work_directory import WorkDirectory

PUT: Final = "put"
DELETE: Final = "delete"

_Rows = dict[bytes, list[StateRow]]
"""Those of one task, by encoded grouping key."""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """What is to be written, and why."""

    config: Config
    variable: str
    reason: str
    rows: Callable[[StatePlan], Iterable[StateRow]]
    """Gives the rows, once the schemas are known: a key in any form that a reader may name it in, other
    values as tuples."""
    kind: str = PUT
    """`PUT` or `DELETE`. A deletion of a row with a key within a map deletes that entry alone."""
    operator: str | None = None
    """None: the one operator of the job."""
    ttl_ms: int | None = None
    """How long after the job's newest batch a put value lives, where its row does not say when it ends."""


async def write_rows(
    request: WriteRequest, changing: Changing, open_it: OpenJob = open_job
) -> tuple[Changed, int]:
    """Write rows as a new commit; return it, and how many grouping keys they have.

    Raises:
        ConfigError: There is no such job, operator or variable; a key does not fit or is given twice; the
            time to live is missing; or the job may be running, or has gone on meanwhile.
        StateSchemaError: A value does not fit.
        StateBackupError: As `change_state`.
    """
    require_reason(request.reason)
    config = request.config
    asked = StateRequest(config, request.variable, operator=request.operator)
    plan = await plan_state(asked, changing.directory / "plan", changing.on_progress, open_it)
    rows = _by_task(plan, request)
    async with open_it(config, SystemClock()) as job:
        position, commit = await find_changeable(job, changing)
        if position != plan.parts[0].positions[0]:
            raise ConfigError(
                f"the job has committed meanwhile, and nothing is changed: commit={position}",
                hint="stop the job, then try again",
            )
        edit = _Edit(
            request, plan, commit, _clock_of(commit) if plan.variable.declared.expires else None
        )
        keys = sum(len(found) for found in rows.values())
        change = StateChange(
            kind=request.kind,
            by=person(),
            reason=request.reason,
            operator=request.operator or MAIN_OPERATOR,
            variable=request.variable,
            keys=keys,
        )
        edits = {task: edit.of(found) for task, found in rows.items()}
        return await change_state(job, change, edits, changing), keys


def require_reason(reason: str) -> None:
    """Make sure that a change has a reason.

    Raises:
        ConfigError: It is empty.
    """
    if not reason.strip():
        raise ConfigError("a change of the state needs a reason", hint="say why: --reason TEXT")


def open_in(
    work: WorkDirectory, store: StoreName, config: Config, *, is_to_load: bool = False
) -> KeyValueStore:
    """Open a store of the job in a work directory."""
    settings = config.store(store)
    options = RocksDbOptions.of(settings)
    return work.open_store(store, settings.factory, options, is_to_load=is_to_load)


def task_of_key(router: KeyRouter | ByteKeys, front: bytes) -> TaskName:
    """Return the task of an encoded key.

    Raises:
        ConfigError: The job routes its keys in a way that is not known here.
    """
    number = router.task_of(front)
    if number is None:
        raise ConfigError(
            "the job routes its keys by a rule that is not known here",
            hint="use the version of Statekeep that the job runs with",
        )
    return task_name(number)


def _by_task(plan: StatePlan, request: WriteRequest) -> Mapping[TaskName, _Rows]:
    """Check what can be checked of rows without the state, and route them."""
    found: dict[TaskName, _Rows] = {}
    for row in request.rows(plan):
        front = plan.router.encode(row.key)
        if request.kind == PUT:
            _check_end(row, request, expires=plan.variable.declared.expires)
        task = task_of_key(plan.router, front)
        found.setdefault(task, {}).setdefault(front, []).append(row)
    part_of = _part_of(plan)
    for rows in found.values():
        for key_rows in rows.values():
            if len({part_of(row) for row in key_rows}) < len(key_rows):
                raise ConfigError(
                    f"the key is given twice: variable={request.variable} key={key_rows[0].key!r}",
                    hint="give each key, each position of a list and each key of a map once",
                )
            if request.kind == PUT and plan.variable.declared.kind == "list":
                _check_positions(key_rows, request)
    return found


def _part_of(plan: StatePlan) -> Callable[[StateRow], object]:
    """Return what tells the rows of one grouping key apart: a key within a map as it is stored."""
    declared = plan.variable.declared
    if declared.map_key_schema is None:
        return lambda row: None if declared.kind == "value" else repr(row.within)
    schema = read_schema(declared.map_key_schema)
    values, keys = ValueCodec(schema), KeyCodec(schema)

    def part_of(row: StateRow) -> object:
        try:
            return (
                None
                if row.within is None
                else keys.encode(values.decode(values.encode(row.within)))
            )
        except MisfitError:
            return repr(row.within)  # refused once it is written

    return part_of


def _check_positions(rows: Sequence[StateRow], request: WriteRequest) -> None:
    given = [row.within for row in rows]
    if any(type(at) is not int for at in given) or sorted(given) != list(range(len(given))):
        raise ConfigError(
            "the rows of a list are not all its elements: "
            f"variable={request.variable} key={rows[0].key!r} positions={given}",
            hint="they take the place of the list: give every element, with list_position from 0 on",
        )


def _check_end(row: StateRow, request: WriteRequest, *, expires: bool) -> None:
    has_end = row.time_ms is not None or request.ttl_ms is not None
    if expires and not has_end:
        raise ConfigError(
            "the state variable has a time to live, which only the program knows: "
            f"variable={request.variable} key={row.key!r}",
            hint="give the program's ttlDurationMs (ttl_ms, --ttl-ms), or when each value ends in a column"
            " expiration_timestamp_ms",
        )
    if has_end and not expires:
        raise ConfigError(
            f"the state variable has no time to live: variable={request.variable}",
            hint="leave ttl_ms and expiration_timestamp_ms out",
        )


def _clock_of(commit: CommitRecord) -> BatchClock:
    """Return the time of a commit's batch, as Spark recorded it."""
    offsets = "" if commit.query is None else commit.query.offsets or ""
    time = parse_batch_time(offsets, f"offsets/{commit.batch}")
    return BatchClock(time.processing_time_ms, time.watermark_ms)


@dataclass(frozen=True, slots=True)
class _Edit:
    """Makes the edits of the tasks of one write."""

    request: WriteRequest
    plan: StatePlan
    commit: CommitRecord
    clock: BatchClock | None
    """None: the variable has no time to live."""

    def of(self, rows: _Rows) -> Edit:
        """Return the edit of one task."""

        def edit(
            directory: TaskDirectory, version: SealedVersion | None, uid: str
        ) -> SealedVersion | None:
            config = self.request.config
            stores = [store for found in stores_of(self.commit).values() for store in found]
            with directory.begin(uid, version, stores, captured=stores) as work:
                opened = {store: open_in(work, store, config) for store in stores}
                if not self._write(opened, rows):
                    return None
                return work.seal(self.commit.batch, uid, version)

        return edit

    def _write(self, stores: Mapping[StoreName, KeyValueStore], rows: _Rows) -> int:
        """Write the rows of a task; return how many entries have changed."""
        variables: dict[int | None, _Variable] = {}
        codec = KeyCodec(self.plan.table.keys)
        for front, key_rows in sorted(rows.items()):
            ordered = key_rows
            if self.plan.variable.declared.kind == "list":
                ordered = sorted(key_rows, key=lambda row: cast("int", row.within or 0))
            for number, (end_ms, run) in enumerate(groupby(ordered, self._end_of)):
                if end_ms not in variables:
                    variables[end_ms] = _Variable.open(self, stores, end_ms)
                key = codec.decode(front)
                variables[end_ms].apply(key, front, list(run), is_first=number == 0)
        return sum(variable.handle.changed_keys for variable in variables.values())

    def _end_of(self, row: StateRow) -> int | None:
        """Return when the value of a row ends; None where it does not, or is deleted."""
        if self.clock is None or self.request.kind == DELETE:
            return None
        now_ms = self.clock.processing_time_ms
        if row.time_ms is None:
            return now_ms + (self.request.ttl_ms or 0)
        if row.time_ms <= now_ms:
            raise ConfigError(
                "the value has ended before the job's newest batch: "
                f"variable={self.request.variable} key={row.key!r} "
                f"expiration_timestamp_ms={row.time_ms} batch_time_ms={now_ms}",
                hint="leave the row out, or give a later time",
            )
        return row.time_ms


@dataclass(frozen=True, slots=True)
class _Variable:
    """The variable in one task, whose values end at one time."""

    handle: LocalHandle
    cursor: KeyCursor
    state: ValueState | ListState | MapState
    is_deletion: bool

    @classmethod
    def open(
        cls, edit: _Edit, stores: Mapping[StoreName, KeyValueStore], end_ms: int | None
    ) -> "_Variable":
        """Declare the variable as the processor's ``init`` does."""
        plan, declared = edit.plan, edit.plan.variable.declared
        name, schema = plan.variable.name, read_schema(declared.schema)
        others = dict(stores)
        main = others.pop(STATE_STORE)
        ttl_ms: int | None = None
        if edit.clock is not None:  # of a deletion any time to live will do
            ttl_ms = 1 if end_ms is None else end_ms - edit.clock.processing_time_ms
        cursor = KeyCursor()
        handle = LocalHandle(
            main,
            cursor,
            ChangeWriter(main),
            plan.table.keys,
            time_mode=_time_mode(main, expires=declared.expires),
            clock=edit.clock,
            operator=edit.request.operator or MAIN_OPERATOR,
            others=others,
            variable_stores=VariableStores({name: plan.store}),
        )
        state: ValueState | ListState | MapState
        if declared.kind == "list":
            state = handle.getListState(name, schema, ttl_ms)
        elif declared.map_key_schema is not None:
            state = handle.getMapState(name, read_schema(declared.map_key_schema), schema, ttl_ms)
        else:
            state = handle.getValueState(name, schema, ttl_ms)
        handle.seal()
        return cls(handle, cursor, state, edit.request.kind == DELETE)

    def apply(
        self, key: tuple[Any, ...], front: bytes, rows: Sequence[StateRow], *, is_first: bool
    ) -> None:
        """Write the rows of one grouping key; a list begins anew with the first of them."""
        self.cursor.enter([[value] for value in key], [front])
        match self.state:
            case MapState():
                self._apply_to_map(self.state, rows)
            case _ if self.is_deletion:
                self.state.clear()
            case ListState():
                items = [cast("tuple[Any, ...]", row.value) for row in rows]
                (self.state.put if is_first else self.state.appendList)(items)
            case _:
                self.state.update(cast("tuple[Any, ...]", rows[0].value))
        self.handle.flush()

    def _apply_to_map(self, state: MapState, rows: Sequence[StateRow]) -> None:
        for row in rows:
            if not self.is_deletion:
                state.containsKey(
                    row.within
                )  # reads the entry: one that is the same is not written
                state.updateValue(row.within, cast("tuple[Any, ...]", row.value))
            elif row.within is None:
                state.clear()
            else:
                state.removeKey(row.within)


def _time_mode(store: KeyValueStore, *, expires: bool) -> TimeMode:
    """Return the time mode that the program has: a task says which timers it keeps."""
    known = stored_variables(store)[1]
    for mode, name in TIMER_NAMES.items():
        if name in known:
            return mode
    return TimeMode.PROCESSING if expires else TimeMode.NONE
