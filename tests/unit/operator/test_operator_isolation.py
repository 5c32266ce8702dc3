"""No key sees another key's state or rows, whatever a processor does with what it was given."""

import copy
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import ByFunction, memory_store, record_batch, run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator import grouping, inputs, variables
from statekeep.spark.operator.inputs import FrameLimits
from statekeep.stores.base import KeyValueStore
from statekeep.stores.memory import MemoryStore
from statekeep.stores.rocksdb import RocksDbOptions, RocksDbStore

KEYS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=7, unique=True)
TWO_ROWS = FrameLimits(rows=2)
KINDS = st.sampled_from(["value", "list", "map"])

Step = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "CHUNK_KEYS", 2)
    monkeypatch.setattr(grouping, "CHUNK_ROWS", 2)
    monkeypatch.setattr(inputs, "CHUNK_ROWS", 2)
    monkeypatch.setattr(variables, "WRITE_KEYS", 2)


def declare(kind: str, handle: StatefulProcessorHandle, name: str = "v") -> Any:
    match kind:
        case "value":
            return handle.getValueState(name, "n long")
        case "list":
            return handle.getListState(name, "n long")
        case _:
            return handle.getMapState(name, "k long", "n long")


def add(variable: Any, kind: str, n: int) -> None:
    match kind:
        case "value":
            variable.update(((variable.get() or (0,))[0] + n,))
        case "list":
            variable.appendValue((n,))
        case _:
            variable.updateValue((n,), (n,))


def read(variable: Any, kind: str) -> Any:
    match kind:
        case "value":
            return variable.get()
        case "list":
            return list(variable.get())
        case _:
            return list(variable.iterator())


def refusal(use: Callable[[], Any]) -> str:
    """What using state in vain says; what it gave if it was not refused."""
    try:
        return f"gave {use()!r}"
    except ConfigError as exc:
        return str(exc)


def over_keys(
    init: Callable[[StatefulProcessorHandle], Any],
    use: Callable[[Any, str], Any],
    keys: Sequence[str],
    store: MemoryStore | None = None,
) -> dict[str, Any]:
    """Run one batch with one row for each key; return what ``use`` gave for each."""
    given_back: dict[str, Any] = {}

    def handle_rows(variable: Any, key: tuple[str], rows: Any) -> Iterator[Any]:
        given_back[key[0]] = use(variable, key[0])
        return iter(())

    run(ByFunction(init, handle_rows), [(key, 0) for key in keys], store=store)
    return given_back


# --- programs that use state as they should ------------------------------------------------------

NUMBER = st.integers(0, 3)
KEPT_STEPS = st.tuples(st.sampled_from(["next of kept", "rest of kept"]))
STEPS = {
    "value": st.one_of(
        st.tuples(st.just("update"), NUMBER),
        st.tuples(st.sampled_from(["clear value", "read value"])),
    ),
    "list": st.one_of(
        st.tuples(st.just("append"), NUMBER),
        st.tuples(st.just("put"), st.lists(NUMBER, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["clear list", "read list", "keep list"])),
        KEPT_STEPS,
    ),
    "map": st.one_of(
        st.tuples(st.just("map"), NUMBER, NUMBER),
        st.tuples(st.sampled_from(["remove", "has"]), NUMBER),
        st.tuples(st.sampled_from(["clear map", "read map", "keep map", "keep keys"])),
        KEPT_STEPS,
    ),
}
BATCHES = st.sampled_from(["value", "list", "map", "map"]).flatmap(
    lambda kind: st.lists(
        st.dictionaries(st.sampled_from("abcde"), st.lists(STEPS[kind], max_size=8), max_size=5),
        min_size=1,
        max_size=3,
    )
)


class Plain:
    """The state of one key, as a plain dict has it."""

    def __init__(self) -> None:
        self.value: tuple[int] | None = None
        self.items: list[tuple[int]] = []
        self.map: dict[int, int] = {}


class Kept:
    """An iterator of state that outlives the call that asked for it, with what it has to give."""

    def __init__(self, iterator: Iterator[Any], expected: list[Any]) -> None:
        self._pairs = (iterator, iter(expected))

    def check(self, most: int) -> None:
        nothing = object()
        for _ in range(most):
            found, expected = (next(iterator, nothing) for iterator in self._pairs)
            assert found == expected
            if expected is nothing:
                return


def take_step(  # noqa: PLR0912 - one branch for each kind of step
    step: Step, state: Any, plain: Plain, kept: list[Kept]
) -> None:
    value, items, mapping = state
    pairs = [((k,), (v,)) for k, v in sorted(plain.map.items())]
    match step:
        case ("update", n):
            value.update((n,))
            plain.value = (n,)
        case ("append", n):
            items.appendValue((n,))
            plain.items.append((n,))
        case ("put", numbers):
            items.put([(n,) for n in numbers])
            plain.items = [(n,) for n in numbers]
        case ("map", k, n):
            mapping.updateValue((k,), (n,))
            plain.map[k] = n
        case ("remove", k):
            mapping.removeKey((k,))
            plain.map.pop(k, None)
        case ("has", k):
            assert mapping.containsKey((k,)) == (k in plain.map)
        case ("clear value",):
            value.clear()
            plain.value = None
        case ("clear list",):
            items.clear()
            plain.items = []
        case ("clear map",):
            mapping.clear()
            plain.map = {}
        case ("read value",):
            assert (value.get(), value.exists()) == (plain.value, plain.value is not None)
        case ("read list",):
            assert (list(items.get()), items.exists()) == (plain.items, bool(plain.items))
        case ("read map",):
            assert (list(mapping.iterator()), mapping.exists()) == (pairs, bool(pairs))
        case ("keep list",):
            kept.append(Kept(items.get(), list(plain.items)))
        case ("keep map",):
            kept.append(Kept(mapping.iterator(), pairs))
        case ("keep keys",):
            kept.append(Kept(mapping.keys(), [key for key, _ in pairs]))
        case ("next of kept",):
            for iterator in kept:
                iterator.check(1)
        case _:
            for iterator in kept:
                iterator.check(100)


READ_ALL: Mapping[str, list[Step]] = {
    key: [("read value",), ("read list",), ("read map",)] for key in "abcde"
}


class Program:
    """Runs batches of steps on a store and on plain dicts, and compares whatever is read."""

    def __init__(self, batches: Sequence[Mapping[str, list[Step]]]) -> None:
        self._batches = [*batches, READ_ALL]
        self._model: dict[str, Plain] = {}

    def check(self, store: KeyValueStore, *, is_pandas: bool = False) -> None:
        for batch in self._batches:
            rows = [(key, 0) for key in sorted(batch)]
            processor = ByFunction(self._declare, partial(self._handle_rows, batch, []))
            run(
                processor,
                rows,
                store=store,
                is_pandas=is_pandas,
                is_sorted=True,
                frame_limits=TWO_ROWS,
            )

    def _declare(self, handle: StatefulProcessorHandle) -> list[Any]:
        return [declare(kind, handle, kind) for kind in ("value", "list", "map")]

    def _handle_rows(
        self,
        batch: Mapping[str, list[Step]],
        kept: list[Kept],
        state: Any,
        key: tuple[str],
        rows: Any,
    ) -> Iterator[Any]:
        for step in batch[key[0]]:
            take_step(step, state, self._model.setdefault(key[0], Plain()), kept)
        yield from ()


@settings(deadline=None)
@given(BATCHES, st.booleans())
def test_any_program_finds_what_a_dict_would_hold(
    batches: list[Mapping[str, list[Step]]],
    is_pandas: bool,  # noqa: FBT001 - drawn
) -> None:
    Program(batches).check(memory_store(), is_pandas=is_pandas)


@settings(max_examples=20, deadline=None)
@given(BATCHES)
def test_any_program_finds_it_in_rocksdb_too(batches: list[Mapping[str, list[Step]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = RocksDbStore(
            StoreName("state"), Path(directory) / "db", RocksDbOptions(), is_new=True
        )
        Program(batches).check(store)
        store.close()


# --- variables whose time is over ----------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(KINDS, KEYS, st.booleans())
def test_a_deleted_variable_is_refused_for_every_key(
    kind: str,
    keys: list[str],
    is_declared_before: bool,  # noqa: FBT001 - drawn
) -> None:
    store = memory_store()
    if is_declared_before:
        over_keys(lambda h: declare(kind, h), lambda v, key: add(v, kind, 1), keys, store)

    def init(handle: StatefulProcessorHandle) -> Any:
        variable = declare(kind, handle)
        handle.deleteIfExists("v")
        return variable

    words = "state variable was deleted by deleteIfExists: variable=v"
    for use in (add, lambda v, kind, _: read(v, kind)):
        found = over_keys(init, lambda v, _: refusal(lambda: use(v, kind, 1)), keys, store)  # noqa: B023
        assert {key: text.split(": ", 1)[1] for key, text in found.items()} == dict.fromkeys(
            keys, words
        )


@settings(max_examples=30, deadline=None)
@given(KINDS, KEYS, KEYS, st.booleans())
def test_a_variable_of_an_earlier_batch_is_refused(
    kind: str,
    first_keys: list[str],
    keys: list[str],
    is_failed: bool,  # noqa: FBT001 - drawn
) -> None:
    store = memory_store()
    earlier: list[Any] = []

    def keep(variable: Any, key: str) -> None:
        add(variable, kind, 7)
        earlier.append(variable)
        if is_failed and key == max(first_keys):
            raise KeyError("the batch fails")

    try:
        over_keys(lambda h: declare(kind, h), keep, first_keys, store)
    except KeyError:
        store = memory_store()
    seen = over_keys(
        lambda h: declare(kind, h),
        lambda _, key: (
            refusal(lambda: read(earlier[0], kind)),
            refusal(lambda: add(earlier[0], kind, 1)),
        ),
        keys,
        store,
    )
    words = "state variable is of a batch that is over: variable=v"
    assert seen == dict.fromkeys(keys, (words, words))
    assert refusal(lambda: read(earlier[0], kind)) == words


def test_the_handle_of_a_failed_init_declares_and_deletes_nothing_any_more() -> None:
    handles: list[StatefulProcessorHandle] = []

    def init(handle: StatefulProcessorHandle) -> None:
        handles.append(handle)
        raise KeyError("init fails")

    with pytest.raises(KeyError):
        run(ByFunction(init), [])
    assert "in init() only" in refusal(lambda: declare("value", handles[0]))
    assert "in init() only" in refusal(lambda: handles[0].deleteIfExists("v"))


@pytest.mark.parametrize("kind", ["value", "list", "map"])
@pytest.mark.parametrize("is_failed", [False, True], ids=["ended", "failed"])
def test_state_in_close_is_refused(kind: str, is_failed: bool) -> None:  # noqa: FBT001
    said: list[str] = []

    class Closing(ByFunction):
        @override
        def close(self) -> None:
            said.append(refusal(lambda: read(self.variable, kind)))

    def handle_rows(variable: Any, key: Any, rows: Any) -> Iterator[Any]:
        add(variable, kind, 1)
        if is_failed:
            raise KeyError("the batch fails")
        return iter(())

    processor = Closing(lambda h: declare(kind, h), handle_rows)
    try:
        run(processor, [("a", 1)])
    except KeyError:
        assert is_failed
    words = "state is used while no grouping key is being processed"
    assert said == ["state variable is of a batch that is over: variable=v" if is_failed else words]


@pytest.mark.parametrize("second", ["value", "list", "map"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["at once", "after its deletion"])
def test_a_name_is_declared_once(second: str, is_deleted: bool) -> None:  # noqa: FBT001
    def init(handle: StatefulProcessorHandle) -> None:
        declare("value", handle)
        if is_deleted:
            handle.deleteIfExists("v")
        declare(second, handle)

    with pytest.raises(StateSchemaError, match=r"declared twice in init\(\): variable=v"):
        run(ByFunction(init), [])


# --- copies, threads, failures -------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(KINDS, KEYS, st.sampled_from([copy.copy, copy.deepcopy, pickle.dumps]))
def test_a_variable_is_neither_copied_nor_pickled(
    kind: str, keys: list[str], duplicate: Callable[[Any], Any]
) -> None:
    def use(variable: Any, key: str) -> str:
        add(variable, kind, 1)
        with pytest.raises(TypeError, match="neither copied nor pickled: variable=v") as caught:
            duplicate(variable)
        return str(caught.value)

    over_keys(lambda h: declare(kind, h), use, keys)


@settings(max_examples=30, deadline=None)
@given(KINDS, KEYS)
def test_state_is_refused_to_other_threads(kind: str, keys: list[str]) -> None:
    def use(variable: Any, key: str) -> list[str]:
        add(variable, kind, 1)
        said: list[str] = []

        def from_another_thread() -> None:
            said.append(refusal(lambda: read(variable, kind)))
            said.append(refusal(lambda: add(variable, kind, 1)))

        thread = threading.Thread(target=from_another_thread)
        thread.start()
        thread.join()
        return said

    words = "state is used by another thread than the processor's"
    assert over_keys(lambda h: declare(kind, h), use, keys) == dict.fromkeys(keys, [words] * 2)


class FailingStore:
    """Hands everything on to a store, but fails once at a call of one method."""

    def __init__(self, store: MemoryStore, method: str, good_calls: int) -> None:
        self._store = store
        self._method = method
        self._left = good_calls

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            self._left -= 1
            if self._left == -1:
                raise OSError("disk is full")
        return getattr(self._store, name)


@settings(max_examples=30, deadline=None)
@given(KEYS, st.integers(0, 12), st.sampled_from(["write", "scan"]))
def test_a_change_that_failed_is_not_lost_though_the_processor_catches_its_error(
    keys: list[str], good_calls: int, method: str
) -> None:
    store = memory_store()
    failing: Any = FailingStore(store, method, good_calls)
    model: dict[str, list[Any]] = {}

    def use(variable: Any, key: str) -> None:
        try:
            for n in (1, 2, 3):
                add(variable, "map", n)
            variable.clear()
            for n in (4, 5, 6):
                add(variable, "map", n)
        except OSError:
            return  # such as one that puts the row on a list of bad ones
        model[key] = [((n,), (n,)) for n in (4, 5, 6)]

    try:
        over_keys(lambda h: declare("map", h), use, keys, failing)
    except OSError:
        return  # the batch ends, and its state with it
    found = over_keys(lambda h: declare("map", h), lambda v, _: read(v, "map"), keys, store)
    assert found == {key: model.get(key, []) for key in keys}


# --- rows and frames -----------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 5), min_size=1),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_rows_that_are_read_late_are_those_of_their_own_key(
    row_counts: dict[str, int],
    is_pandas: bool,  # noqa: FBT001 - drawn
    is_sorted: bool,  # noqa: FBT001 - drawn
    read_at_once: int,
) -> None:
    kept: dict[str, Iterator[Any]] = {}
    found: dict[str, set[str]] = {}

    def keys_of(part: Any) -> set[str]:
        return set(part["key"]) if is_pandas else {part.key}

    def handle_rows(_: Any, key: tuple[str], rows: Iterator[Any]) -> Iterator[Any]:
        kept[key[0]] = rows
        for owner, iterator in kept.items():
            for part in islice(iterator, read_at_once):
                found.setdefault(owner, set()).update(keys_of(part))
        return iter(())

    rows = [(key, n) for key, count in sorted(row_counts.items()) for n in range(count)]
    # Batches of two rows: a key of three or more is given its rows while they are read.
    batches = [record_batch(rows[at : at + 2]) for at in range(0, len(rows), 2)]
    run(
        ByFunction(handle_rows=handle_rows),
        batches,
        is_pandas=is_pandas,
        frame_limits=TWO_ROWS,
        is_sorted=is_sorted,
    )
    for owner, iterator in kept.items():
        for part in iterator:
            found.setdefault(owner, set()).update(keys_of(part))
    assert all(found[owner] <= {owner} for owner in found)


@settings(max_examples=30, deadline=None)
@given(KEYS)
def test_a_frame_that_the_processor_uses_again_is_output_as_it_was_yielded(keys: list[str]) -> None:
    frame = pd.DataFrame({"key": [""], "n": [0]})

    def handle_rows(_: Any, key: tuple[str], rows: Any) -> Iterator[pd.DataFrame]:
        for n in (1, 2):
            frame.loc[0, "key"] = key[0]
            frame.loc[0, "n"] = n
            yield frame

    _, output = run(
        ByFunction(handle_rows=handle_rows),
        [(key, 0) for key in keys],
        is_pandas=True,
        frame_limits=TWO_ROWS,
    )
    assert [tuple(row.values()) for row in output.to_pylist()] == [
        (key, n) for key in sorted(keys) for n in (1, 2)
    ]


@settings(max_examples=30, deadline=None)
@given(KEYS)
def test_a_list_that_the_processor_uses_again_is_output_as_it_was_yielded(keys: list[str]) -> None:
    gathered: list[Any] = []

    def handle_rows(_: Any, key: tuple[str], rows: Any) -> Iterator[Row]:
        gathered.clear()
        for n in (1, 2):
            gathered.append(n)
            yield Row(key=key[0], items=gathered, last={"n": gathered})

    kind = "key string, items array<long>, last struct<n: array<long>>"
    _, output = run(ByFunction(handle_rows=handle_rows), [(key, 0) for key in keys], output=kind)
    assert output.to_pylist() == [
        {"key": key, "items": items, "last": {"n": items}}
        for key in sorted(keys)
        for items in ([1], [1, 2])
    ]
