"""The page that lists every setting."""

import re
from pathlib import Path

import pytest

from statekeep.config.document import main, render, texts_of
from statekeep.config.key import keys_of
from statekeep.config.keys import GROUPS, KEYS, UNSUPPORTED

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def test_the_page_in_the_repository_is_up_to_date() -> None:
    assert main(["--check", str(PAGE)]) == 0


def test_the_page_names_every_key_alias_and_refused_key() -> None:
    text = render()
    for key in KEYS:
        for name in (key.name, *key.aliases, *key.job_aliases):
            assert f"`{name}`" in text
    assert all(f"`{name}`" in text for name in UNSUPPORTED)


@pytest.mark.parametrize("section", [one for group in GROUPS.values() for one in group])
def test_every_setting_says_what_it_does_and_why_its_default(section: type) -> None:
    texts = texts_of(section)
    for field in keys_of(section):
        assert re.fullmatch(r"[^ ].*\. \*.*\.\*", texts[field]), field


def test_every_row_of_the_page_has_as_many_cells_as_its_head() -> None:
    for table in render().split("\n\n"):
        rows = [line.replace("\\|", "") for line in table.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1


@pytest.mark.parametrize("old", [None, "old text"])
def test_a_page_that_is_out_of_date_fails_the_check_and_is_left_alone(
    tmp_path: Path, old: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "configuration.md"
    if old is not None:
        page.write_text(old)
    assert main(["--check", str(page)]) == 1
    assert "out of date" in capsys.readouterr().err
    assert (page.read_text() if page.exists() else None) == old


def test_a_page_that_was_just_written_passes_the_check(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "reference" / "settings.md"
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0
