"""The page of a job: its history as HTML without anything from elsewhere."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Final

from statekeep.cli.page.bins import Axis, Bin, binned
from statekeep.cli.page.charts import Chart, Mark, Series, figure, patterns
from statekeep.cli.page.markup import Markup, tag
from statekeep.cli.page.units import NOT_RECORDED, ago, duration, moment, number, size
from statekeep.inspection.findings import findings_of
from statekeep.inspection.history import (
    ABORTED,
    OPEN,
    PHASES,
    Attempt,
    Backend,
    Day,
    JobHistory,
    Recovery,
    RetainedCommit,
    Session,
)

_MOST_ROWS: Final = 50
"""Of a table whose length grows with the age of a job: the newest."""
_MOST_TASKS: Final = 10
_MOST_DAYS: Final = 31

_DOLLARS: Final = {"put": 5e-6, "list": 5e-6, "get": 0.4e-6, "init": 0.4e-6}
"""Of S3 Standard, for one request of an operation; deletes are free."""

_SIGNS: Final = {"good": "✔ fine: ", "warn": "▲ look at this: ", "bad": "✖ act: "}

STYLE: Final = (files("statekeep.cli.page") / "page.css").read_text(encoding="utf-8")


def page(history: JobHistory, *, script: str = "") -> str:
    """Return the whole document.

    Its policy lets a browser use this style and this script, and nothing else from anywhere.

    Args:
        history: Of the job.
        script: Runs in the page.
    """
    allowed = f"script-src '{_digest(script)}'; connect-src 'self'; " if script else ""
    policy = f"default-src 'none'; {allowed}style-src '{_digest(STYLE)}'; base-uri 'none'"
    document = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{history.job} - Statekeep"),
            tag("style", Markup(STYLE)),
        ),
        tag(
            "body",
            patterns(),
            *([tag("div", id="live", role="status")] if script else []),
            main(history),
            *([tag("script", Markup(script))] if script else []),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def main(history: JobHistory) -> Markup:
    """Return all that changes as the job goes on."""
    return tag(
        "main",
        tag("h1", history.job),
        tag("p", f"As of {moment(history.now_ms)}. All times are UTC.", class_="about"),
        _findings(history),
        _summary(history),
        _charts(history),
        _backends(history),
        _tasks(history),
        _sessions(history),
        _aborted(history),
        _retained(history),
        _days(history),
        _unrecorded(history),
    )


def _findings(history: JobHistory) -> Markup:
    items = [
        tag(
            "li",
            tag("strong", _SIGNS[finding.level], class_=finding.level),
            finding.text,
            f" ({finding.remedy})" if finding.remedy else "",
        )
        for finding in findings_of(history)
    ]
    return tag("ul", *items, class_="findings")


def _summary(history: JobHistory) -> Markup:
    commits = history.commits
    newest = commits[-1] if commits else None
    facts = [
        ("newest commit", ago(newest.time_ms, history.now_ms) if newest else "none on record"),
        ("its batch", number(newest.batch) if newest else NOT_RECORDED),
        ("newest batch", number(history.newest_batch)),
        ("driver session", session_state(history)),
        ("size of the state", size(newest.state_bytes if newest else None)),
        ("commits on record", number(len(commits))),
        ("skipped, as one was open", number(sum(commit.skipped for commit in commits))),
        ("processing was blocked for", duration(sum(commit.blocked_ms for commit in commits))),
        ("newest verified commit", _verified(history)),
    ]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts))


def _verified(history: JobHistory) -> str:
    """Return how old the newest commit is that was proven, and when it was."""
    verified = history.last_verified
    if verified is None:
        return NOT_RECORDED
    proven = f"proven {ago(verified.time_ms, history.now_ms)}"
    if verified.commit_ms is None:
        return proven
    return f"{ago(verified.commit_ms, history.now_ms)}, {proven}"


def session_state(history: JobHistory) -> str:
    """Return what is known of the newest driver session: whether it runs cannot be seen from here."""
    session = history.session
    if session is None:
        return NOT_RECORDED
    if session.error:
        return "failed"
    if session.has_stopped:
        return f"stopped {ago(session.ended_ms, history.now_ms)}"
    return f"last event {ago(session.last_event_ms, history.now_ms)}"


def _charts(history: JobHistory) -> Markup:
    times = [attempt.time_ms for attempt in history.attempts if attempt.time_ms is not None]
    if not times:
        return tag("section", tag("h2", "Commits"), tag("p", "None on record.", class_="none"))
    begins = [s for s in history.sessions if s.began_ms is not None]
    axis = Axis.over([*times, *(s.began_ms for s in begins if s.began_ms is not None)])
    bins = binned(history.attempts, axis)
    marks = [Mark(s.began_ms or 0, f"driver session {s.epoch} began") for s in begins]
    step = duration(axis.step_ms)
    return tag(
        "section",
        tag("h2", "Commits over time"),
        tag("p", f"Each point stands for {step}.", class_="about"),
        *(figure(chart) for chart in charts(history, axis, bins, marks)),
    )


def charts(
    history: JobHistory, axis: Axis, bins: Sequence[Bin], marks: Sequence[Mark]
) -> list[Chart]:
    """Return the charts of the page."""
    return [
        Chart(
            "commits",
            "Commits",
            "How many became durable, how many were aborted, and how many were due while another was open.",
            axis,
            number,
            bars=[
                Series("committed", [each.committed for each in bins]),
                Series("aborted", [each.aborted for each in bins]),
                Series("skipped", [each.skipped for each in bins]),
            ],
            marks=marks,
            least_top=4,
        ),
        Chart(
            "phases",
            "Phases of a commit",
            "Means. Tasks stand still only during the pause; the rest goes on beside the processing. "
            "On Spark a commit waits until every task has submitted its version.",
            axis,
            duration,
            bars=[Series(phase, [each.phases.get(phase) for each in bins]) for phase in PHASES],
            lines=[Series("slowest commit", [each.slowest_ms for each in bins])],
            marks=marks,
        ),
        Chart(
            "backends",
            "Upload by backend",
            "The slowest task of each commit, as a mean.",
            axis,
            duration,
            lines=[
                Series(backend.name, [each.by_backend.get(backend.name) for each in bins])
                for backend in history.backends
            ],
        ),
        Chart(
            "bytes",
            "Bytes",
            "What all tasks sent to all backends, and the deltas of the state that made it necessary.",
            axis,
            size,
            bars=[Series("uploaded", [each.bytes_uploaded for each in bins])],
            lines=[Series("changed", [each.changed_bytes for each in bins])],
        ),
        Chart(
            "state",
            "Size of the state",
            "On the local disks, all tasks together, as last reported by each.",
            axis,
            size,
            lines=[Series("state", [each.state_bytes for each in bins])],
        ),
        Chart(
            "blocked",
            "Processing blocked by commits",
            "How long batches waited for an open commit.",
            axis,
            duration,
            bars=[Series("blocked", [each.blocked_ms for each in bins])],
        ),
    ]


def _backends(history: JobHistory) -> Markup:
    rows = [
        [
            each.name,
            _state_of_backend(each),
            NOT_RECORDED
            if each.behind_ms is None
            else f"{each.behind_commits} commits, {duration(each.behind_ms)}",
            number(each.uploads),
            size(each.bytes) if each.uploads else NOT_RECORDED,
            *([size(history.held.get(each.name))] if history.held else []),
            duration(each.median_ms),
            duration(each.longest_ms),
            number(each.failures),
            each.last_failure or "-",
        ]
        for each in history.backends
    ]
    heads = [
        "backend",
        "newest commit",
        "behind",
        "commits",
        "sent",
        *(["holds of it"] if history.held else []),
        "median",
        "longest",
        "failures",
    ]
    return _section("Backends", [*heads, "last failure"], rows)


def _state_of_backend(backend: Backend) -> Markup:
    if backend.is_left_out:
        return tag("strong", "✖ incomplete", class_="bad")
    if backend.behind_commits == 0:
        return tag("span", "✔ whole", class_="good")
    return tag("span", NOT_RECORDED if backend.is_current else "no backend of the job any more")


def _tasks(history: JobHistory) -> Markup:
    rows = [
        [
            each.task,
            number(each.times_slowest),
            duration(each.longest_ms),
            duration(each.total_ms / each.uploads),
            number(each.uploads),
            size(each.bytes),
            size(each.state_bytes),
        ]
        for each in history.tasks[:_MOST_TASKS]
    ]
    heads = ["task", "times the slowest", "longest", "mean", "uploads", "sent", "state"]
    return _section("Slowest tasks", heads, rows)


def _sessions(history: JobHistory) -> Markup:
    sessions = [_session_row(each) for each in reversed(history.sessions)]
    recoveries = [_recovery_row(each) for each in reversed(history.recoveries)]
    return tag(
        "div",
        _section(
            "Driver sessions",
            [
                "epoch",
                "began",
                "owner",
                "reason",
                "from commit",
                "head",
                "phases of its start",
                "end",
            ],
            sessions,
        ),
        _section(
            "Recoveries",
            [
                "time",
                "epoch",
                "reason",
                "head",
                "restored",
                "from",
                "fetched",
                "replayed",
                "took",
                "phases",
                "failures",
            ],
            recoveries,
        ),
    )


def _session_row(session: Session) -> list[str]:
    restart = f"restart {session.restart_number}: {session.restart}" if session.restart else ""
    if session.has_stopped:
        end = f"{moment(session.ended_ms)} {session.error or 'asked to stop'}"
    else:
        end = session.error or f"not on record; last event {moment(session.last_event_ms)}"
    return [
        number(session.epoch),
        moment(session.began_ms),
        session.owner or NOT_RECORDED,
        restart or "started",
        number(session.from_commit),
        number(session.head),
        _phases(session.phases_ms),
        end,
    ]


def _phases(phases_ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {duration(ms)}" for name, ms in phases_ms.items()) or NOT_RECORDED


def _recovery_row(recovery: Recovery) -> list[str]:
    return [
        moment(recovery.time_ms),
        number(recovery.epoch),
        recovery.reason or NOT_RECORDED,
        number(recovery.head),
        number(recovery.restored),
        ", ".join(recovery.sources) or "-",
        size(recovery.bytes_fetched),
        f"{recovery.replayed} batches, {number(recovery.rows_replayed)} rows",
        duration(recovery.elapsed_ms),
        _phases(recovery.phases_ms),
        "; ".join(recovery.failures) or "-",
    ]


def _aborted(history: JobHistory) -> Markup:
    rows = [
        _attempt_row(each) for each in reversed(history.attempts) if each.outcome in {ABORTED, OPEN}
    ]
    heads = ["time", "attempt", "batch", "state", "sent", "reason"]
    return _section("Attempts that did not become commits", heads, rows)


def _attempt_row(attempt: Attempt) -> list[str]:
    return [
        moment(attempt.time_ms),
        "-".join(map(str, attempt.key)) if attempt.key else NOT_RECORDED,
        number(attempt.batch),
        attempt.outcome,
        size(attempt.bytes_uploaded),
        attempt.reason or "-",
    ]


def _retained(history: JobHistory) -> Markup:
    newest = history.retained[-_MOST_ROWS:]
    pinned = [commit for commit in history.retained[:-_MOST_ROWS] if commit.pins]
    rows = [_retained_row(commit) for commit in reversed([*pinned, *newest])]
    identity = history.identity
    about = (
        ""
        if identity is None
        else (
            f"{identity.partitions} tasks, uid {identity.job_uid}, stores "
            + "; ".join(f"{op}: {', '.join(stores)}" for op, stores in identity.stores.items())
            + "".join(
                f". It shares backups of commit {share.position} of {share.job_name}, pinned as {share.pin}"
                for share in identity.shares
            )
        )
    )
    heads = ["commit", "batch", "begun", "checkpoint id", "epoch", "query", "pinned as", ""]
    return _section(
        f"Commits to restore from ({len(history.retained)}), and pins",
        heads,
        rows,
        about,
        most=None,
    )


def _retained_row(commit: RetainedCommit) -> list[str]:
    pins = (
        name + (f" until {moment(expires)}" if expires else "")
        for name, expires in sorted(commit.pins.items())
    )
    return [
        number(commit.position),
        number(commit.batch),
        moment(commit.time_ms),
        commit.checkpoint_id,
        number(commit.epoch),
        commit.query_id or "-",
        ", ".join(pins) or "-",
        "current" if commit.is_current else "",
    ]


def _days(history: JobHistory) -> Markup:
    names = [name for name in dict.fromkeys(n for day in history.days for n in day.bytes) if name]
    asked = list(dict.fromkeys(name for day in history.days for name in day.requests))
    has_rest = any("" in day.bytes for day in history.days)
    rows = [
        [
            moment(day.date_ms)[:10],
            number(day.commits),
            number(day.aborted),
            number(day.task_uploads),
            *(size(day.bytes.get(name, 0)) for name in names),
            *([size(day.bytes.get("", 0))] if has_rest else []),
            *(_requests(day.requests.get(name)) for name in asked),
            *([_price(day)] if asked else []),
        ]
        for day in reversed(history.days)
    ]
    heads = [
        "day",
        "commits",
        "aborted",
        "uploads of tasks",
        *(f"sent to {name}" for name in names),
    ]
    if has_rest:
        heads.append("sent, backend not recorded")
    heads += [f"requests to {name}" for name in asked]
    if asked:
        heads.append("at S3's prices")
    about = (
        "Requests with their tries, at the prices of S3 Standard in us-east-1; without storage and traffic."
        " A listing is one request here, however many pages it has."
        if asked
        else "Requests are not in the records: the metric statekeep_requests_total counts them."
    )
    return _section("Cost per day", heads, rows, about, most=_MOST_DAYS)


def _requests(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return NOT_RECORDED
    kinds = sorted(counts.items(), key=lambda each: -each[1])
    return f"{number(sum(counts.values()))}: " + ", ".join(
        f"{name} {number(n)}" for name, n in kinds
    )


def _price(day: Day) -> str:
    """Return what the requests of a day would cost in S3, whatever the storage is."""
    if not day.requests:
        return NOT_RECORDED
    dollars = sum(
        count * _DOLLARS.get(operation, 0)
        for counts in day.requests.values()
        for operation, count in counts.items()
    )
    return f"${dollars:,.2f}"


def _unrecorded(history: JobHistory) -> Markup:
    """Say what the figures above leave out."""
    facts = [
        "Progress events are kept for the newest ten driver sessions; of a long one, its first "
        "and its"
        " newest. Some may be lost: "
        + (
            "there is no event of this job, so times and bytes are unknown."
            if history.first_event_ms is None
            else f"the oldest event is of {moment(history.first_event_ms)}, and"
            f" {number(history.missing_events)} later ones are missing."
        ),
        "Requests are recorded on Spark only. Of Kafka they are calls to its client, which have no price.",
        "What a backend keeps for older commits is not recorded. `report --held` asks for the newest one.",
        "Commits by older releases lack phases, bytes by backend, changed bytes and size of the state.",
    ]
    return tag("footer", tag("h2", "What is not recorded"), *(tag("p", fact) for fact in facts))


def _section(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    about: str = "",
    *,
    most: int | None = _MOST_ROWS,
) -> Markup:
    shown = rows[:most]
    parts = [tag("h2", title)]
    if about:
        parts.append(tag("p", about, class_="about"))
    if not rows:
        return tag("section", *parts, tag("p", "None on record.", class_="none"))
    if len(shown) < len(rows):
        parts.append(tag("p", f"The newest {len(shown)} of {len(rows)}.", class_="about"))
    body = (
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in shown
    )
    head = tag("tr", *(tag("th", name, scope="col") for name in heads))
    table = tag("table", tag("thead", head), tag("tbody", *body))
    return tag("section", *parts, tag("div", table, class_="scroll"))
