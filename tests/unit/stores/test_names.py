"""Names of directories."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.errors import ConfigError
from statekeep.stores.names import directory_name

names = st.text(min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Partition 3", "Partition_3"),
        ("my_job", "my%5Fjob"),
        ("a.b-c", "a.b-c"),
        ("..", "%2E."),
        ("../x", "%2E.%2Fx"),
        ("100%", "100%25"),
        ("ü", "%C3%BC"),
        (".lock", "%2Elock"),
    ],
    ids=str,
)
def test_odd_characters_are_escaped(name: str, expected: str) -> None:
    assert directory_name(name) == expected


@settings(deadline=None)
@given(one=names, other=names)
def test_different_names_have_different_directories(one: str, other: str) -> None:
    assert (directory_name(one) == directory_name(other)) == (one == other)


@settings(deadline=None)
@given(name=names)
def test_a_directory_name_is_one_visible_part_of_a_path(name: str) -> None:
    result = directory_name(name)
    assert "/" not in result
    assert not result.startswith(".")
    assert result.isascii()


@pytest.mark.parametrize("name", ["", "x" * 256], ids=["empty", "long"])
def test_a_name_that_no_file_system_takes_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="local directory"):
        directory_name(name)
