import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeep.backends.remote_names import check_blob_name, escape_name, unescape_name

texts = st.text(st.one_of(st.sampled_from(" _.%-/\\0123aZ"), st.characters()), min_size=1).filter(
    lambda text: text.encode(errors="ignore").decode() == text
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Partition 3", "Partition_3"),
        ("Partition_3", "Partition%5F3"),
        ("page_views", "page_views"),
        ("page views", "page%20views"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("a/b", "a%2Fb"),
        ("a%20b", "a%2520b"),
        ("é", "%C3%A9"),
        ("a _ 3", "a%20__3"),
    ],
)
def test_names_stay_readable(text: str, expected: str) -> None:
    assert escape_name(text) == expected


@given(texts)
def test_every_name_comes_back(text: str) -> None:
    part = escape_name(text)

    assert unescape_name(part) == text
    check_blob_name(part)
    assert "/" not in part


def test_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        escape_name("")
