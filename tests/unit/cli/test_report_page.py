"""The page of a job: whole in itself, harmless whatever the log says, small however old the job is."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_kit import TASK, CommandLine
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import commit_record
from page_kit import HOSTILE, Parts, fold_of, hostile_history, made_history

from statekeep.checkpoint.event_log import Event
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import AttemptRecord, EpochRecord, Record, Share
from statekeep.cli.output import harmless, utc
from statekeep.cli.page.bins import MOST_BINS, Axis, binned
from statekeep.cli.page.markup import Markup, joined, tag
from statekeep.cli.page.page import page
from statekeep.cli.page.units import ago, duration, number, size
from statekeep.inspection.history_fold import HistoryFold

LOG = f"--task '{TASK}'"


def test_the_costs_of_a_day_have_its_requests_and_what_they_cost_in_s3() -> None:
    counts = {"near": {"put": 1_000_000, "get": 500_000}, "far": {"list": 200_000, "delete": 9}}
    asked = Event(epoch=1, sequence=0, time_ms=5, kind="requests", details={"requests": counts})
    text = page(fold_of([asked]).history("orders", LogView(), 10))
    assert "1,500,000: put 1,000,000, get 500,000" in text
    assert "200,009: list 200,000, delete 9" in text
    assert "$6.20" in text
    assert "Requests are not in the records" in page(fold_of([]).history("orders", LogView(), 10))


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page(made_history(300))
    parts = Parts(text)
    assert {name for name, _ in parts.elements}.isdisjoint({"link", "img", "iframe", "script", "a"})
    for _, attributes in parts.elements:
        assert {"src", "href", "style"}.isdisjoint(attributes)
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {f"#fill-{n}" for n in range(4)}
    assert "@import" not in text


def test_the_policy_of_the_page_allows_its_own_style_and_script_only() -> None:
    plain, live = page(made_history(5)), page(made_history(5), script="let a = '<b>';")
    for text, names in ((plain, ["style"]), (live, ["script", "style"])):
        parts = Parts(text)
        (policy,) = [str(each["content"]) for each in parts.named("meta") if "http-equiv" in each]
        assert policy.startswith("default-src 'none'; ")
        digests = re.findall(r"(script|style)-src 'sha256-([^']*)'", policy)
        assert [name for name, _ in digests] == names
        for name, digest in digests:
            (content,) = parts.inside[name]
            assert base64.b64decode(digest) == hashlib.sha256(content.encode()).digest()


def test_what_the_log_says_is_text_and_never_markup() -> None:
    parts = Parts(page(hostile_history()))
    assert {name for name, _ in parts.elements}.isdisjoint({"script", "img"})
    for _, attributes in parts.elements:
        assert not any(name.startswith("on") for name in attributes)
    assert parts.inside["h1"] == [HOSTILE]
    whole = "\n".join(parts.texts)
    assert whole.count(HOSTILE) > 20  # the attack was shown in many places, as what it is


@settings(deadline=None)
@given(st.text(), st.text())
def test_text_and_attributes_come_back_without_control_characters(text: str, value: str) -> None:
    parts = Parts(tag("p", text, title=value))
    assert "".join(parts.texts) == harmless(text)
    assert parts.elements == [("p", {"title": harmless(value)})]


def test_a_text_that_cannot_be_encoded_and_a_time_that_is_none_do_not_stop_the_page() -> None:
    hour = 3_600_000
    began, batch, stopped = (
        Event(epoch=1, sequence=number, time_ms=time_ms, kind=kind, details={"error": "bad \udcff"})
        for number, (time_ms, kind) in enumerate(
            [(hour, "job-initialised"), (2**63 - 1, "commit"), (2 * hour, "stopped")]
        )
    )
    batch.details["checkpoint_id"] = f"{10**15}-000000"
    history = fold_of([began, batch, stopped]).history("flights", LogView(), 2 * hour)
    text = page(history).encode().decode()
    assert "bad �" in text
    assert "1970-01-01 02:00:00Z bad" in text
    begun = AttemptRecord(
        epoch=1, nonce="a", attempt=1, batch=0, checkpoint_id=f"{10**17}-000000", versions={}
    )
    fold = HistoryFold()
    fold.take_record(0, begun)
    assert [each.began_ms for each in fold.history("flights", LogView(), hour).attempts] == [None]
    assert utc(10**17) == "100000000000000000 ms"


def test_markup_is_put_in_as_it_is() -> None:
    assert tag("p", tag("b", "a<b"), " & ", class_="x", data_a=None) == (
        '<p class="x"><b>a&lt;b</b> &amp; </p>'
    )
    assert joined([Markup("<i>"), "<i>"]) == "<i>&lt;i&gt;"


def test_every_chart_has_a_name_and_a_table_of_its_figures() -> None:
    parts = Parts(page(made_history(300)))
    ids = [str(attributes["id"]) for _, attributes in parts.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    charts = [each for each in parts.named("svg") if each.get("role") == "img"]
    assert len(charts) == 5
    for chart in charts:
        assert {chart["aria-labelledby"], chart["aria-describedby"]} <= set(ids)
    assert len(parts.named("details")) == len(charts)
    assert all(each["scope"] in {"col", "row"} for each in parts.named("th"))


def test_a_recovery_says_why_and_how_long_each_part_of_it_took() -> None:
    parts = Parts(page(made_history(2_000)))
    cells = parts.inside["td"]
    assert cells[cells.index("restore 700 ms, replay 200 ms") - 8 :][:2] == ["1", "start"]
    assert {"reason", "phases"} <= set(parts.inside["th"])


def test_a_clone_says_whose_backups_it_shares() -> None:
    share = Share(job_name="orders", job_uid="u", log="near", position=7, pin="clone:trial")
    record = commit_record(1)
    own = msgspec.structs.replace(record.identity, shares=[share])
    view, fold = LogView(), HistoryFold()
    records: list[Record] = [EpochRecord(epoch=1, nonce="e", owner="host:1")]
    records.append(msgspec.structs.replace(record, epoch=1, nonce="c", identity=own))
    for position, each in enumerate(records):
        view.fold(position, each)
        fold.take_record(position, each)
    (about,) = [
        text for text in Parts(page(fold.history("trial", view, 1))).inside["p"] if "uid u" in text
    ]
    assert about.endswith("It shares backups of commit 7 of orders, pinned as clone:trial")


def test_series_differ_by_more_than_colour() -> None:
    text = page(made_history(300))
    css = re.findall(r"\.line\.series-(\d) \{ stroke-dasharray", text)
    assert sorted(css) == ["1", "2", "3", "4", "5"]
    shapes = re.findall(r'<pattern[^>]*id="fill-\d"[^>]*><rect[^>]*></rect><g>(.*?)</g>', text)
    assert len(shapes) == len(set(shapes)) == 6


def test_the_page_of_ten_thousand_commits_is_no_larger_than_a_small_picture() -> None:
    history = made_history(10_000, tasks=1)
    text = page(history)
    assert len(text) < 250_000
    assert len(Parts(text).named("rect")) < 10 * MOST_BINS  # of five charts


def test_the_page_of_a_job_without_events_says_what_it_does_not_know() -> None:
    text = page(made_history(0))
    assert "no commit is retained yet" in text
    assert "None on record." in text


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**43), max_size=20), st.integers(2, 200))
def test_an_axis_covers_all_times_in_a_bounded_number_of_steps(times: list[int], most: int) -> None:
    axis = Axis.over(times, most)
    assert 1 <= axis.count <= most
    for time_ms in times:
        step = axis.bin_of(time_ms)
        assert 0 <= step < axis.count
        assert axis.begin_of(step) <= time_ms < axis.begin_of(step + 1)


def test_points_add_up_to_the_commits() -> None:
    history = made_history(1_000)
    axis = Axis.over(attempt.time_ms or 0 for attempt in history.attempts)
    bins = binned(history.attempts, axis)
    assert sum(each.committed for each in bins) == len(history.commits)
    assert sum(each.aborted for each in bins) == 5
    sent = sum(commit.bytes_uploaded or 0 for commit in history.commits)
    assert sum(each.bytes_uploaded or 0 for each in bins) == sent
    assert max(each.slowest_ms or 0 for each in bins) == max(
        commit.elapsed_ms or 0 for commit in history.commits
    )


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "not recorded"),
        (0, "0 ms"),
        (4.567, "4.57 ms"),
        (999.4, "999 ms"),
        (999.6, "1 s"),
        (1_234, "1.23 s"),
        (59_600, "1 min"),
        (185_000, "3 min 5 s"),
        (7_800_000, "2 h 10 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_durations_read_like_speech(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def test_numbers_have_units() -> None:
    assert (size(12_600), size(None)) == ("12.6 kB", "not recorded")
    assert (number(1234), number(0.5), number(None)) == ("1,234", "0.50", "not recorded")
    assert (ago(1000, 3500), ago(3500, 1000)) == ("2.5 s ago", "0 ms ago")


def test_the_command_writes_the_page_of_a_job(statekeep: CommandLine, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    result = statekeep(f"report {target} {LOG}")
    assert (result.status, result.out) == (0, f"wrote {target}\n")
    parts = Parts(target.read_text(encoding="utf-8"))
    assert parts.inside["h1"] == ["orders"]
    assert "near" in parts.texts


def test_the_command_names_the_page_after_the_job(
    statekeep: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert statekeep(f"report {LOG}").out == "wrote orders.html\n"
    assert Path("orders.html").exists()


def test_the_command_says_where_it_cannot_write(statekeep: CommandLine, tmp_path: Path) -> None:
    result = statekeep(f"report {tmp_path}/none/page.html {LOG}")
    assert result.status == 2
    assert "the page cannot be written" in result.err


def test_the_backends_are_asked_how_much_they_hold_where_that_is_wanted(
    statekeep: CommandLine, job: Path, tmp_path: Path
) -> None:
    (shown,) = statekeep(f"stores show {LOG} --json").json["tasks"]
    expected = {
        store["facts"]["backend"]: sum(map(bytes_below, store["parts"])) for store in shown["parts"]
    }
    assert statekeep(f"report --held --json {LOG}").json["held"] == expected
    assert expected["near"] == expected["far"] > 0
    for path in [path for path in (job / "far").rglob("*") if path.is_file()]:
        path.unlink()
    target = tmp_path / "page.html"
    assert statekeep(f"report {target} --held {LOG}").status == 0
    parts = Parts(target.read_text(encoding="utf-8"))
    assert "holds of it" in parts.inside["th"]
    assert size(expected["near"]) in parts.inside["td"]
    assert statekeep(f"report --held --json {LOG}").json["held"] == {**expected, "far": None}
    assert statekeep(f"report --json {LOG}").json["held"] == {}


def bytes_below(node: dict[str, Any]) -> int:
    return sum(map(bytes_below, node["parts"])) if node["bytes"] is None else int(node["bytes"])


def test_programs_get_the_figures(statekeep: CommandLine) -> None:
    found = statekeep(f"report --json {LOG}").json
    assert [attempt["outcome"] for attempt in found["attempts"]] == ["committed"] * 4
    assert found["attempts"][-1]["phases"].keys() == {"pause", "wait", "upload", "record"}
    assert found["attempts"][-1]["uploads"].keys() == {"near", "far"}
    assert found["identity"]["job-name"] == "orders"
