"""Histories to make pages of, and pages taken apart."""

from collections.abc import Iterable
from html.parser import HTMLParser

from typing_extensions import override

from benchmarks.report_page import made_events
from statekeep.checkpoint.event_log import Event
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, EpochRecord, JobIdentity, PinRecord, Record
from statekeep.inspection.history import JobHistory
from statekeep.inspection.history_fold import HistoryFold

HOSTILE = "</title></style><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;]]>"


def made_history(commits: int, *, tasks: int = 3) -> JobHistory:
    """A job with so many commits, two backends, restarts and aborted attempts."""
    return fold_of(made_events(commits, tasks=tasks)).history(
        "flights", LogView(), 1_795_100_000_000
    )


def hostile_history() -> JobHistory:
    """A job in which every text is an attack."""
    view, fold = LogView(), HistoryFold()
    commit = CommitRecord(
        epoch=1,
        nonce="c",
        attempt_epoch=1,
        attempt=1,
        batch=0,
        checkpoint_id="1795000000000-000000",
        identity=JobIdentity(
            job_uid=HOSTILE, job_name=HOSTILE, partitions=1, stores={HOSTILE: [HOSTILE]}
        ),
        versions={HOSTILE: "0_0000000a"},
    )
    records: list[Record] = [
        EpochRecord(epoch=1, nonce="e", owner=HOSTILE),
        commit,
        PinRecord(epoch=1, nonce="p", name=HOSTILE, position=1),
    ]
    for position, record in enumerate(records):
        view.fold(position, record)
        fold.take_record(position, record)
    for event in made_events(300, tasks=2, backends=[HOSTILE, "far"]):
        fold.take_event(_attacked(event))
    error = Event(
        epoch=1, sequence=0, time_ms=1, kind="clean-up-failing", details={"error": HOSTILE}
    )
    fold.take_event(error)
    return fold.history(HOSTILE, view, 1_795_100_000_000)


def fold_of(events: Iterable[Event]) -> HistoryFold:
    """Add events up."""
    fold = HistoryFold()
    for event in events:
        fold.take_event(event)
    return fold


def _attacked(event: Event) -> Event:
    details = event.details | {
        name: HOSTILE for name in ("task", "reason", "error") if name in event.details
    }
    return Event(
        epoch=event.epoch,
        sequence=event.sequence,
        time_ms=event.time_ms,
        kind=event.kind,
        details=details | {"failures": [HOSTILE], "phases_ms": {HOSTILE: 5}},
    )


class Parts(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.inside: dict[str, list[str]] = {}
        """Texts by the element that they stand in."""
        self.feed(text)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    @override
    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        self.inside.setdefault(self._open[-1] if self._open else "", []).append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element of a name."""
        return [attributes for name, attributes in self.elements if name == tag]
