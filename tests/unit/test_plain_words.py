"""What people read has no words that have a plainer one, and no sentence that is too long to follow."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = ("statekeep", "docs", "changes", "chaos", "benchmarks", "examples", "scripts", "README.md")
READ_TOO = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy", "tests")
WORDS = {
    "anybody": "a user, another process, or the passive voice",
    "again and again": "repeatedly",
    "believ": "accept, trust",
    "condemned": "to be deleted",
    "errand": "task function",
    r"for ever\b": "without a limit, or what really happens",
    "forgiv": "reset",
    "guest": "pin writer",
    r"hand(?:s|ed|ing)?[ _-]overs?\b": "submit, submission",
    "hiccup": "transient failure",
    r"let(?:s|ting)? (?:it |them )?go\b(?! on)": "release",
    "nobody": "no process, no user, or the passive voice",
    "of a sort\\b": "a kind of",
    "patience": "timeout, deadline",
    "quarrel": "conflict",
    r"reign(?:s|ed)?\b": "driver session",
    "somebody": "a user, another process",
    r"stretch(?:es)?\b": "range",
    r"test_\w+_(?:told(?!_to_)|tells)(?:_|\b)": "reported, shown, named: what it is",
    r"void(?:s|ed)?\b": "abort, aborted",
    "weather": "fault profile",
    "whereabouts": "executor location",
    "whoever|whomever": "the process that, the caller",
}
"""``{word: what to write}``; each is looked for at the beginning of a word, also of a name in code."""
STORED = re.compile(
    r"""["'`](?:void|hand-over|way-to-void)["'`]|### void|statekeep 1 void|\b_VOID\b|weather-(?:night|sunny)"""
    r"|spark-weather|static void"
)
"""Names in stored records and seeds, which stay as they are, of HTML and of icons, and Java's."""


def _at(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:\b|_)(?:{words})", re.IGNORECASE)


_ANY = _at("|".join(WORDS))

MOST_WORDS = 35
"""In a sentence of a document, in an item of a list and in a cell of a table."""
_NO_PROSE = re.compile(r"^( *)```.*?^\1```$|(?<=\])\([^)]*\)", re.MULTILINE | re.DOTALL)
"""Code, and the targets of links."""
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)|(?<!\\)\||^#.*$", re.MULTILINE)
_SENTENCE = re.compile(r"""(?<=[.!?])["”)*]*\s+(?=["“(*`\[A-Z0-9])""")


def files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *READ, *READ_TOO]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        name
        for name in listed.split()
        if name.endswith((".py", ".md", ".yml", ".json")) and Path(name).name != Path(__file__).name
    ]


def found_in(text: str) -> list[tuple[str, str]]:
    """Return each line with a word that has a better one, and what to write."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if _ANY.search(plain := STORED.sub("", line)):
            found += [
                (line.strip()[:100], better)
                for word, better in WORDS.items()
                if _at(word).search(plain)
            ]
    return found


@pytest.mark.parametrize(
    "line",
    [
        "Nobody waits for it.",
        "hand_over = 1",
        "the versions that were handed over",
        "a hand-over",
        "PATIENCE_S = 1",
        "the attempt is void",
    ],
)
def test_a_word_that_has_a_plainer_one_is_found(line: str) -> None:
    assert len(found_in(line)) == 1


@pytest.mark.parametrize("line", ['tag="hand-over"', 'tag="void"', "avoid it", "sorted", "foreign"])
def test_stored_names_and_other_words_are_left_alone(line: str) -> None:
    assert found_in(line) == []


def test_what_people_read_has_plain_words() -> None:
    listed = files()
    assert len(listed) > 500
    found = {
        name: lines
        for name in listed
        if (lines := found_in((ROOT / name).read_text(encoding="utf-8")))
    }
    assert found == {}


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changes/*.md")])


def long_sentences(text: str) -> Iterator[str]:
    """Yield the beginning of each sentence of more than `MOST_WORDS` words."""
    for paragraph in _PARAGRAPH.split(_NO_PROSE.sub("", text)):
        for sentence in _SENTENCE.split(paragraph):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > MOST_WORDS:
                yield " ".join(words)[:100]


@pytest.mark.parametrize("mark", ["", "- ", "1. ", "| a | ", "# Head\n"])
def test_a_long_sentence_is_found(mark: str) -> None:
    assert len(list(long_sentences(f"{mark}Word {'word ' * MOST_WORDS}\nhere. And one."))) == 1


@pytest.mark.parametrize("end", [". ", ".) ", "\n\n", "\n- ", "\n1. ", " | ", "\n# Head\n"])
def test_short_sentences_are_not_counted_together(end: str) -> None:
    assert not list(long_sentences(f"Word {'word ' * (MOST_WORDS - 2)}word{end}Word word."))


def test_code_and_the_targets_of_links_are_no_words() -> None:
    assert not list(long_sentences(f"```text\n{'word ' * 50}\n```\n[here]({'word ' * 50})"))


def test_documents_have_no_long_sentences() -> None:
    listed = documents()
    assert len(listed) > 100
    found = {
        str(path.relative_to(ROOT)): sentences
        for path in listed
        if (sentences := list(long_sentences(path.read_text(encoding="utf-8"))))
    }
    assert found == {}
