"""``statekeep checkpoints`` and ``statekeep events``."""

import asyncio
import re
from pathlib import Path

from cli_kit import TASK, CommandLine, commit_numbers

LOG = f"--task '{TASK}'"


def test_the_retained_commits_are_listed_oldest_first(statekeep: CommandLine) -> None:
    rows = statekeep(f"checkpoints list {LOG} --json").json
    assert [row["is-current"] for row in rows] == [False, False, False, False, True]
    assert [row["commit"] for row in rows] == sorted(row["commit"] for row in rows)
    assert [row["backends"] for row in rows] == [[], *[["far", "near"]] * 4]
    assert all(re.fullmatch(r"20..-..-..T..:..:..Z", row["time"]) for row in rows)


def test_people_get_a_table(statekeep: CommandLine) -> None:
    result = statekeep(f"checkpoints list {LOG}")
    assert result.status == 0
    head, *rows = result.out.splitlines()
    assert head.split() == [
        "commit",
        "batch",
        "checkpoint",
        "id",
        "time",
        "tasks",
        "backends",
        "pinned",
        "as",
    ]
    assert [row.endswith("current") for row in map(str.strip, rows)] == [
        False,
        False,
        False,
        False,
        True,
    ]


def test_a_commit_shows_offsets_and_markers_of_each_task(statekeep: CommandLine) -> None:
    shown = statekeep(f"checkpoints show {LOG} --json").json
    assert shown["is-current"] is True
    task = shown["tasks"][TASK]
    assert task["input-offsets"] == {"kafka.orders.v1.0": "4"}
    assert sorted(task["markers"]) == ["far", "near"]
    assert sorted(task["markers"]["near"]) == ["counts"]


def test_a_commit_is_found_by_position_checkpoint_id_and_pin(statekeep: CommandLine) -> None:
    found = statekeep(f"checkpoints list {LOG} --json").json[2]
    statekeep(f"checkpoints pin keep {found['commit']} {LOG}")
    for which in (found["commit"], found["checkpoint-id"], "keep"):
        shown = statekeep(f"checkpoints show {which} {LOG} --json").json
        assert shown["tasks"][TASK]["input-offsets"] == {"kafka.orders.v1.0": "2"}


def test_two_commits_are_compared_value_by_value(statekeep: CommandLine) -> None:
    old = statekeep(f"checkpoints list {LOG} --json").json[2]["commit"]
    rows = statekeep(f"checkpoints diff {old} {LOG} --json").json
    offsets = [row for row in rows if row["what"] == "input offset"]
    assert offsets == [
        {"task": TASK, "what": "input offset", "where": "kafka.orders.v1.0", "old": "2", "new": "4"}
    ]
    assert {row["what"] for row in rows} >= {"version", "marker in near", "marker in far"}
    current = statekeep(f"checkpoints show {LOG} --json").json["commit"]
    assert statekeep(f"checkpoints diff {current} {LOG} --json").json == []


def test_a_pinned_commit_outlives_retention_until_it_is_unpinned(
    statekeep: CommandLine, job: Path
) -> None:
    first = statekeep(f"checkpoints list {LOG} --json").json[1]["commit"]
    result = statekeep(f"checkpoints pin 'before the move' {first} {LOG}")
    assert result.out == f"commit {first} is pinned as before the move\n"

    asyncio.run(commit_numbers(job, [5, 6, 7, 8], retained=2))
    rows = statekeep(f"checkpoints list {LOG} --json").json
    assert (rows[0]["commit"], rows[0]["pins"]) == (first, ["before the move"])
    assert statekeep(f"verify 'before the move' {LOG}").status == 0

    statekeep(f"checkpoints unpin 'before the move' {LOG}")
    asyncio.run(commit_numbers(job, [9, 10], retained=2))
    gone = statekeep(f"checkpoints show {first} {LOG}")
    assert gone.status == 2
    assert f"commit={first} retained=" in gone.err


def test_the_history_has_each_record(statekeep: CommandLine) -> None:
    rows = statekeep(f"events {LOG} --json").json
    assert [row["position"] for row in rows] == list(
        range(rows[0]["position"], rows[0]["position"] + len(rows))
    )
    assert {row["event"] for row in rows} >= {"attempt", "commit"}
    assert statekeep(f"events {LOG} --last 2 --json").json == rows[-2:]


def test_an_unknown_commit_is_refused_with_those_that_are_there(statekeep: CommandLine) -> None:
    result = statekeep(f"checkpoints show nonsense {LOG}")
    assert (result.status, result.out) == (2, "")
    assert "no such commit: commit=nonsense retained=" in result.err
    assert "hint: `statekeep checkpoints list` shows" in result.err


def test_a_log_that_is_not_there_is_refused_with_the_remedy(statekeep: CommandLine) -> None:
    result = statekeep("checkpoints list")
    assert result.status == 2
    assert "the job has no log here: job=orders backend=near" in result.err
    assert "name it with --task" in result.err


def test_events_have_their_facts_as_values_for_programs(statekeep: CommandLine) -> None:
    rows = statekeep(f"events {LOG} --json").json
    commits = [row for row in rows if row["event"] == "commit"]
    listed = statekeep(f"checkpoints list {LOG} --json").json
    assert [row["facts"]["checkpoint-id"] for row in commits] == [
        row["checkpoint-id"] for row in listed
    ]
    assert not any("checkpoints" in row["facts"] for row in rows)
