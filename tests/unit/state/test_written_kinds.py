"""Variables of every kind, written and erased in a job with timers and times to live."""

import asyncio
import datetime as dt
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from every_kind_kit import DAYS, KEYS, NOW_MS, TTL_MS, make_job, settings

import statekeep as sk
from statekeep.checkpoint.log_session import LogSession
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import ConfigError, StateSchemaError
from statekeep.inspection.job import open_job
from statekeep.inspection.state_change import Changing
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.placement import ROUTER
from statekeep.spark.state.erasing import Erased, EraseRequest, erase_keys
from statekeep.spark.state.given_rows import rows_of_json
from statekeep.spark.state.keys import KeyRouter
from statekeep.spark.state.writing import WriteRequest, write_rows

VARIABLES = ("one", "brief", "items", "fading", "by_day")
END = "expiration_timestamp_ms"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    asyncio.run(make_job(directory))
    return directory


@pytest.fixture
def job(made: Path, tmp_path: Path) -> dict[str, str]:
    """A copy of the job, which one test may change."""
    shutil.copytree(made / "place", tmp_path / "place")
    return settings(tmp_path)


def key(number: int) -> dict[str, Any]:
    return dict(zip(("id", "name"), KEYS[number], strict=True))


def read(job: dict[str, str], variable: str, number: int) -> list[dict[str, Any]]:
    rows = sk.read_state(job, variable, key=KEYS[number]).to_pylist()
    return [{n: v for n, v in row.items() if n not in {"key", "partition_id"}} for row in rows]


def write(job: dict[str, str], variable: str, rows: list[dict[str, Any]], **how: Any) -> None:
    sk.write_state(job, variable, pa.Table.from_pylist(rows), reason="test", **how)


def test_a_list_is_replaced_in_the_order_of_positions(job: dict[str, str]) -> None:
    rows = [{"key": key(1), "list_position": at, "list_element": 10 + at} for at in (1, 0, 2)]
    write(job, "items", rows)
    assert [row["list_element"]["n"] for row in read(job, "items", 1)] == [10, 11, 12]
    assert [row["list_element"]["n"] for row in read(job, "items", 2)] == [1, 2]


def test_entries_of_a_map_are_put_and_deleted_one_by_one(job: dict[str, str]) -> None:
    value = {"n": 7, "tags": [("b", 2)]}
    table = pa.table(
        {
            "key": [key(1)],
            "user_map_key": [{"day": DAYS[1]}],
            "user_map_value": pa.array(
                [value],
                pa.struct([("n", pa.int64()), ("tags", pa.map_(pa.string(), pa.int64()))]),
            ),
        }
    )
    sk.write_state(job, "by_day", table, reason="test")
    found = {row["user_map_key"]["day"]: row["user_map_value"] for row in read(job, "by_day", 1)}
    assert found == {DAYS[0]: {"n": 1, "tags": [("a", 1)]}, DAYS[1]: value}
    write(job, "by_day", [{"key": key(1), "user_map_key": {"day": DAYS[0]}}], delete=True)
    assert [row["user_map_key"]["day"] for row in read(job, "by_day", 1)] == [DAYS[1]]
    write(job, "by_day", [{"key": key(1)}], delete=True)
    assert read(job, "by_day", 1) == []
    assert len(read(job, "by_day", 2)) == 2


def test_a_time_to_live_counts_from_the_newest_batch_or_is_given(job: dict[str, str]) -> None:
    write(job, "brief", [{"key": key(1), "value": 5}], ttl_ms=1_000)
    assert read(job, "brief", 1) == [{"value": {"n": 5}, END: NOW_MS + 1_000}]
    write(job, "brief", [{"key": key(2), "value": 6, END: NOW_MS + 9}])
    assert read(job, "brief", 2) == [{"value": {"n": 6}, END: NOW_MS + 9}]
    assert read(job, "brief", 0) == [{"value": {"n": 0}, END: NOW_MS + TTL_MS}]
    for rows, told in [
        ([{"key": key(1), "value": 5}], "has a time to live, which only the program knows"),
        ([{"key": key(1), "value": 5, END: NOW_MS}], "has ended before the job's newest batch"),
    ]:
        with pytest.raises(ConfigError, match=told):
            write(job, "brief", rows)


def test_elements_of_a_list_may_end_one_by_one(job: dict[str, str]) -> None:
    rows = [
        {"key": key(1), "list_position": at, "list_element": at, END: NOW_MS + end}
        for at, end in enumerate([100, 100, 200])
    ]
    write(job, "fading", rows)
    assert [(row["list_element"]["n"], row[END]) for row in read(job, "fading", 1)] == [
        (0, NOW_MS + 100),
        (1, NOW_MS + 100),
        (2, NOW_MS + 200),
    ]
    write(job, "fading", [{"key": key(1)}], delete=True)
    assert read(job, "fading", 1) == []


def test_what_was_read_of_each_kind_can_be_written_back(job: dict[str, str]) -> None:
    for variable in VARIABLES:
        table = sk.read_state(job, variable)
        gone = table if variable == "by_day" else pa.table({"key": [key(n) for n in range(3)]})
        sk.write_state(job, variable, gone, reason="away", delete=True)
        assert sk.read_state(job, variable).num_rows == 0
        sk.write_state(job, variable, table, reason="back")
        assert sk.read_state(job, variable).equals(table), variable


@pytest.mark.parametrize("positions", [[5], [None], [0, -1], [1, 2], [0, 2], [True, 0]])
def test_rows_that_are_not_a_whole_list_change_nothing(
    job: dict[str, str], positions: list[Any]
) -> None:
    given = [{"key": [1, "bert-vkz"], "list_position": p, "list_element": 9} for p in positions]
    with pytest.raises(ConfigError, match="the rows of a list are not all its elements"):
        write_json(job, "items", given)
    assert [row["list_element"]["n"] for row in read(job, "items", 1)] == [1, 2]


def write_json(job: dict[str, str], variable: str, given: list[Any], kind: str = "put") -> None:
    rows = rows_of_json(json.dumps(given), is_deletion=kind == "delete")
    request = WriteRequest(load_dict(job), variable, "test", rows, kind)
    with TemporaryDirectory() as directory:
        asyncio.run(write_rows(request, Changing(Path(directory), "test")))


def test_a_null_names_no_entry_of_a_map(job: dict[str, str]) -> None:
    entry = {"key": [1, "bert-vkz"], "user_map_key": None}
    with pytest.raises(ConfigError, match="a key within a map is null"):
        write_json(job, "by_day", [entry], "delete")
    value = {"user_map_value": {"n": 1, "tags": {}}}
    with pytest.raises(ConfigError, match="a key within a map is null"):
        write_json(job, "by_day", [entry | value])
    assert len(read(job, "by_day", 1)) == 2


def test_a_deletion_takes_no_element_of_a_list(job: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="a deletion removes whole lists"):
        write_json(job, "items", [{"key": [1, "bert-vkz"], "list_position": 0}], "delete")
    assert len(read(job, "items", 1)) == 2


@pytest.fixture
def _in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def by_time(moment: str) -> dict[str, Any]:
    return {"key": [1, "bert-vkz"], "user_map_key": moment, "user_map_value": 1}


def test_a_key_of_a_map_is_found_twice_however_it_is_written(job: dict[str, str]) -> None:
    twice = [by_time("2026-02-01T00:00:00+00:00"), by_time("2026-02-01T01:00:00+01:00")]
    with pytest.raises(ConfigError, match="the key is given twice"):
        write_json(job, "by_time", twice)


@pytest.mark.usefixtures("_in_new_york")
def test_a_timestamp_without_a_zone_is_in_utc(job: dict[str, str]) -> None:
    noon = dt.datetime(2026, 2, 1, 12, tzinfo=dt.UTC)
    write_json(job, "by_time", [by_time("2026-02-01T12:00:00")])
    without = noon.replace(tzinfo=None)
    write(job, "by_time", [{"key": key(2), "user_map_key": {"at": without}, "user_map_value": 1}])
    for number in (1, 2):
        assert [row["user_map_key"]["at"] for row in read(job, "by_time", number)] == [noon]


@pytest.mark.usefixtures("_in_new_york")
def test_a_grouping_key_without_a_zone_is_in_utc_too() -> None:
    router = KeyRouter(parse_schema("at timestamp, day timestamp_ntz"), ROUTER, range(4))
    noon = dt.datetime(2026, 2, 1, 12)  # noqa: DTZ001 - it has none
    given = router.encode((noon, noon))
    assert given == router.encode({"at": noon.replace(tzinfo=dt.UTC), "day": noon})
    other = noon.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    assert given != router.encode((other, noon))


def test_a_field_that_does_not_fit_is_named(job: dict[str, str]) -> None:
    with pytest.raises(
        StateSchemaError,
        match=r"variable=one key=\(1, 'bert-vkz'\) field=s declared=string found=int",
    ):
        write(job, "one", [{"key": key(1), "value": {"n": 1, "s": 2}}])
    with pytest.raises(StateSchemaError, match=r"variable=one field=n .* missing=n"):
        write(job, "one", [{"key": key(1), "value": {"s": "x"}}])


def erase(job: dict[str, str], directory: Path, *keys: str, **how: Any) -> Erased:
    request = EraseRequest(load_dict(job), keys, "asked to", **how)
    return asyncio.run(erase_keys(request, Changing(directory / "erasing", "test")))


def test_an_erased_key_is_in_no_variable_timer_or_file(job: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "place" / "unrelated").write_bytes(b"bert-vkz")
    assert len(holders(tmp_path, b"bert-vkz")) > 1
    write(job, "one", [{"key": key(2), "value": {"n": 9, "s": "y"}}])
    erased = erase(job, tmp_path, '[1, "bert-vkz"]')
    for variable in VARIABLES:
        found = sk.read_state(job, variable, columns=["key"]).to_pylist()
        assert {row["key"]["id"] for row in found} == {0, 2}, variable
    timers = sk.read_state(job, timers=True).to_pylist()
    assert {row["key"]["id"] for row in timers} == {0, 2}
    # One entry of each kind, two of the map, the timer, and of the indexes: two ends and a timer.
    assert erased.entries == 4 + 2 + 1 + 3
    assert [path.name for path in holders(tmp_path, b"bert-vkz")] == ["unrelated"]
    assert holders(tmp_path, b"carl-wfy")
    assert asyncio.run(retained(job)) == [erased.position]
    write(job, "brief", [{"key": key(0), "value": 1}], ttl_ms=5)  # the indexes are whole


def holders(directory: Path, text: bytes) -> list[Path]:
    """Return the files of the backups in which a text stands."""
    return [
        path
        for path in (directory / "place").rglob("*")
        if path.is_file() and text in path.read_bytes()
    ]


async def retained(job: dict[str, str]) -> list[int]:
    async with open_job(load_dict(job), SystemClock()) as opened:
        return list(opened.view.commits)


async def pin(job: dict[str, str], name: str) -> None:
    async with open_job(load_dict(job), SystemClock()) as opened:
        await LogSession(opened.log).pin(name, opened.view.last_commit_position)


def test_savepoints_are_named_and_go_only_if_asked_to(job: dict[str, str], tmp_path: Path) -> None:
    asyncio.run(pin(job, "monday"))
    before = asyncio.run(retained(job))
    with pytest.raises(
        ConfigError, match=r"kept under names: names=monday; hint: .*--drop-savepoints"
    ):
        erase(job, tmp_path, '[1, "bert-vkz"]')
    assert asyncio.run(retained(job)) == before
    erased = erase(job, tmp_path, '[1, "bert-vkz"]', is_dropping_savepoints=True)
    assert (erased.released, erased.dropped) == (before, ["monday"])
    assert holders(tmp_path, b"bert-vkz") == []


def test_a_key_that_the_state_has_lost_is_erased_from_older_commits(
    job: dict[str, str], tmp_path: Path
) -> None:
    for variable in VARIABLES:
        write(job, variable, [{"key": key(1)}], delete=True)
    assert holders(tmp_path, b"bert-vkz")
    keys = ('[1, "bert-vkz"]', '[1, "bert-vkz"]', '[99, "absent"]')
    erase(job, tmp_path, '[1, "bert-vkz"]')  # its timer is left
    write(job, "one", [{"key": key(0), "value": {"n": 1, "s": "y"}}])
    before = asyncio.run(retained(job))
    for lost in ('[1, "bert-vkz"]', '[99, "absent"]'):
        with pytest.raises(ConfigError, match=r"does not have the key: .*--force"):
            erase(job, tmp_path, '[2, "carl-wfy"]', lost)
    assert asyncio.run(retained(job)) == before
    erase(job, tmp_path, *keys, is_forced=True)
    assert holders(tmp_path, b"bert-vkz") == []
    with pytest.raises(ConfigError, match="the key does not fit the grouping key"):
        erase(job, tmp_path, '["one", "bert-vkz"]')
