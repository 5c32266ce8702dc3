"""Names as parts of paths: readable, safe, and never the same for two names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.checkpoint.names import escape_name, unescape_name
from statekeep.errors import ConfigError

encodable = st.characters(codec="utf-8")
names = st.text(st.sampled_from(" _.%-/\\0123aZ") | encodable, min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Partition 3", "Partition_3"),
        ("Partition_3", "Partition%5F3"),
        ("page_views", "page_views"),
        ("page views", "page%20views"),
        ("a.b-c", "a.b-c"),
        ("..", "%2E."),
        ("../x", "%2E.%2Fx"),
        (".lock", "%2Elock"),
        ("a%20b", "a%2520b"),
        ("é", "%C3%A9"),
        ("a _ 3", "a%20__3"),
    ],
    ids=str,
)
def test_names_stay_readable(name: str, expected: str) -> None:
    assert escape_name(name) == expected


@settings(deadline=None)
@given(names)
def test_every_name_comes_back(name: str) -> None:
    assert unescape_name(escape_name(name)) == name


@settings(deadline=None)
@given(names)
def test_an_escaped_name_is_one_visible_part_of_a_path(name: str) -> None:
    part = escape_name(name)
    assert "/" not in part
    assert not part.startswith(".")
    assert part.isascii()
    assert part.isprintable()


@pytest.mark.parametrize("name", ["", "x" * 256, "\udc80"], ids=["empty", "long", "no unicode"])
def test_a_name_that_no_storage_takes_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name is"):
        escape_name(name)
