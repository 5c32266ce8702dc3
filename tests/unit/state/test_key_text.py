"""Grouping keys that a user has typed."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from statekeep.errors import ConfigError
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.placement import ROUTER
from statekeep.spark.state.key_text import parse_fields
from statekeep.spark.state.keys import KeyRouter

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("schema", "text", "key"),
    [
        ("s string", "a b", ("a b",)),
        ("s string", "7", ("7",)),
        ("s string", '["a"]', ('["a"]',)),
        ("n long", "7", (7,)),
        ("n long", "[7]", (7,)),
        ("n long", "null", (None,)),
        ("n long", '{"n": 7}', (7,)),
        ("b boolean", "true", (True,)),
        ("d double", "0.5", (0.5,)),
        ("d decimal(9,3)", "1.25", (Decimal("1.250"),)),
        ("x binary", "00ff", (b"\x00\xff",)),
        ("day date", "2026-01-31", (NOON.date(),)),
        ("t timestamp", "2026-01-31T12:00:00Z", (NOON,)),
        ("s string, n int", '["a", 7]', ("a", 7)),
        ("s string, day date", '{"day": "2026-01-31", "s": null}', (None, NOON.date())),
        ("s string, d decimal(9,3)", '["a", 1.25]', ("a", Decimal("1.250"))),
        ("a array<date>, p struct<n:int,s:string>", '[["2026-01-31"], [1, "x"]]', None),
    ],
)
def test_a_key_is_read_by_the_types_of_its_fields(schema: str, text: str, key: Any) -> None:
    found = parse_schema(schema)
    expected = ([NOON.date()], (1, "x")) if key is None else key
    router = KeyRouter(found, ROUTER, range(4))
    assert router.encode(parse_fields(text, found)) == KeyCodec(found).encode(expected)


@pytest.mark.parametrize(
    ("schema", "text", "told"),
    [
        ("n long", "seven", "cannot be read: key='seven' expected=struct<n:bigint>"),
        ("n long", '"7"', "does not fit"),
        ("n int", "99999999999", "does not fit"),
        ("day date", "31.1.2026", "cannot be read: key='31.1.2026'"),
        ("s string, n int", '["a"]', "values=1 fields=2"),
        ("s string, n int", '{"s": "a"}', "missing=n"),
    ],
)
def test_what_is_no_key_is_an_error_with_a_hint(schema: str, text: str, told: str) -> None:
    found = parse_schema(schema)
    with pytest.raises(ConfigError, match=told) as caught:
        KeyRouter(found, ROUTER, range(4)).encode(parse_fields(text, found))
    assert caught.value.hints
