"""The format of Java ``.properties`` files."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.config.properties import Property, parse_properties


def pairs(text: str) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a=b", [("a", "b")], id="equals"),
        pytest.param("a:b", [("a", "b")], id="colon"),
        pytest.param("a b", [("a", "b")], id="blank"),
        pytest.param("  a \t=\t b c ", [("a", "b c ")], id="blanks around"),
        pytest.param("a==b", [("a", "=b")], id="only one separator"),
        pytest.param("a = : b", [("a", ": b")], id="only one of both"),
        pytest.param("a", [("a", "")], id="no value"),
        pytest.param("a=", [("a", "")], id="empty value"),
        pytest.param("# a=b\n! c=d\n  # e=f\ng=h", [("g", "h")], id="comments"),
        pytest.param("a=b # c", [("a", "b # c")], id="no comment after a value"),
        pytest.param("\n \t\n\na=b\n\n", [("a", "b")], id="blank lines"),
        pytest.param("a=b\r\nc=d\re=f", [("a", "b"), ("c", "d"), ("e", "f")], id="line ends"),
        pytest.param("a=b,\\\n   c,\\\n\td", [("a", "b,c,d")], id="continued"),
        pytest.param("a=b\\\n# c", [("a", "b# c")], id="no comment in a continued line"),
        pytest.param("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")], id="backslash at the end"),
        pytest.param("a=b\\", [("a", "b")], id="continued into nothing"),
        pytest.param("a=b\\\n\nc=d", [("a", "b"), ("c", "d")], id="continued by a blank line"),
        pytest.param("a\\=b\\:c\\ d=e", [("a=b:c d", "e")], id="escaped separators"),
        pytest.param("a=\\t\\n\\r\\f\\\\\\q", [("a", "\t\n\r\f\\q")], id="escapes"),
        pytest.param("a=\\ b", [("a", " b")], id="leading blank"),
        pytest.param("a=\\u00e9\\u4E2D", [("a", "é中")], id="unicode escapes"),
        pytest.param("a=\\uD83D\\uDE00", [("a", "\U0001f600")], id="surrogate pair"),
        pytest.param("a=1\na=2", [("a", "1"), ("a", "2")], id="given twice"),
        pytest.param("", [], id="empty file"),
    ],
)
def test_entries_are_read_as_java_reads_them(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_an_entry_knows_the_line_on_which_it_begins() -> None:
    text = "# head\n\na=1,\\\n  2\nb=3\n"
    assert list(parse_properties(text)) == [Property("a", "1,2", 3), Property("b", "3", 5)]


@pytest.mark.parametrize("escape", ["\\u12", "\\uzzzz", "\\uD83D", "\\u"])
def test_a_malformed_escape_is_refused_by_line_without_its_text(escape: str) -> None:
    with pytest.raises(ValueError, match=r"^malformed \\u escape: line=2$"):
        pairs(f"a=b\nsecret={escape}")


def escape(text: str) -> str:
    specials = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    return "".join(specials.get(c, f"\\{c}" if c in "\\=: #!" else c) for c in text)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(deadline=None)
@given(entries=st.lists(st.tuples(TEXT.filter(bool), TEXT)))
def test_whatever_is_escaped_is_read_back(entries: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in entries)
    assert pairs(text) == entries


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab=: \t\f\\\n\r#!u0"), max_size=40))
def test_any_text_is_read_or_refused_as_malformed(text: str) -> None:
    try:
        entries = pairs(text)
    except ValueError as exc:
        assert "malformed" in str(exc)  # noqa: PT017 - either outcome is right
    else:
        assert all(isinstance(part, str) for entry in entries for part in entry)
