"""Adds up what the log and the progress events of a job tell into its history.

Pure: reads nothing and has no clock. The log decides which commits there are; the events add times and
bytes. Events may be lost, and an older release wrote fewer facts.
"""

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.event_log import LATEST_MS, Event
from statekeep.checkpoint.log_view import LogView, bad_markers_of, checkpoint_of
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BaseRecord,
    BatchRecord,
    CommitRecord,
    EpochRecord,
    JobIdentity,
    KeptRecord,
    Record,
)
from statekeep.config.redact import redact_text
from statekeep.errors import CheckpointCorruptError
from statekeep.inspection.history import (
    ABORTED,
    COMMITTED,
    OPEN,
    PHASES,
    Attempt,
    Backend,
    BackendFigures,
    Day,
    JobHistory,
    Recovery,
    RetainedCommit,
    Session,
    TaskFigures,
    Verified,
)
from statekeep.restore.manager import LOCAL

_MOST_ATTEMPTS: Final = 100_000
"""Of the newest ones, 70 MB: a page of a job that commits each second shows a day and more."""

_MOST_VERIFY_ERRORS: Final = 9

_FAILED_BACKEND: Final = re.compile(r"\bbackend=([^\s:,;]+)")
"""In the reason of an aborted attempt."""


class HistoryFold:
    """Adds up records and events, each once, in their order; between the two in any order."""

    def __init__(self) -> None:
        self._attempts: deque[Attempt] = deque()
        self._by_key: dict[tuple[int, int], Attempt] = {}
        self._by_id: dict[str, Attempt] = {}
        self._sessions: dict[int, Session] = {}
        self._recoveries: list[Recovery] = []
        self._tasks: dict[str, TaskFigures] = {}
        self._state_bytes = 0
        self._pending: Attempt | None = None
        """What the uploads since the last end of an attempt came to."""
        self._rows_in = 0
        self._pause_ms: float | None = None
        """The longest in a batch since the last commit; None: no batch has told."""
        self._reset_epoch = 0
        """Since which the batches count."""
        self._newest_batch: int | None = None
        self._identity: JobIdentity | None = None
        self._requests: dict[int, dict[str, Counter[str]]] = {}
        """By day, backend and operation."""
        self._clean_up_error = ""
        self._last_verified: Verified | None = None
        self._verify_errors: list[str] = []
        """Of the newest proof."""
        self._first_event_ms: int | None = None
        self._sequences: dict[int, int] = {}
        """Of the newest event of each session."""
        self._missing_events = 0
        self._events: Mapping[str, Callable[[Event], None]] = {
            "job-initialised": self._began,
            "started": self._started,
            "restart": self._restarted,
            "recovery": self._recovered,
            "batch": self._processed,
            "task-uploaded": self._uploaded,
            "commit": self._committed,
            "void": self._aborted,
            "clean-up": self._cleaned_up,
            "clean-up-failing": self._clean_up_failing,
            "verified": self._verified,
            "verify-failed": self._verify_failed,
            "requests": self._requested,
            "fenced": self._fenced,
            "stopped": self._stopped,
        }

    def take_record(self, position: int, record: Record) -> None:
        """Take in a record of the job log."""
        match record:
            case EpochRecord():
                self._session(record.epoch).owner = record.owner
                if record.is_reset:
                    self._reset_epoch, self._newest_batch = record.epoch, None
            case BaseRecord():
                session = self._session(record.epoch)
                session.query_id, session.head = record.query_id, record.head
                session.from_commit = record.commit_position
            case BatchRecord():
                self._take_batch(record.epoch, record.batch)
            case AttemptRecord():
                attempt = self._attempt((record.epoch, record.attempt), record.checkpoint_id)
                attempt.batch = record.batch
            case CommitRecord():
                self._take_commit(position, record)
            case KeptRecord():
                # An old commit alone among the attempts would widen the time that the charts show.
                self._identity = self._identity or record.commit.identity
            case AbortRecord():
                attempt = self._attempt((record.attempt_epoch, record.attempt))
                attempt.outcome, attempt.reason = ABORTED, redact_text(record.reason)
            case _:
                pass

    def take_event(self, event: Event) -> None:
        """Take in a progress event; one of an unknown kind, or without its facts or a time, adds nothing."""
        last = self._sequences.get(event.epoch, -1)
        self._missing_events += max(0, event.sequence - last - 1)
        self._sequences[event.epoch] = event.sequence
        if not 0 <= event.time_ms <= LATEST_MS:
            return
        if self._first_event_ms is None:
            self._first_event_ms = event.time_ms
        self._session(event.epoch).last_event_ms = event.time_ms
        take = self._events.get(event.kind)
        if take is not None:
            take(event)

    def history(self, job: str, view: LogView, now_ms: int) -> JobHistory:
        """Return what there is by now.

        Args:
            job: Its name.
            view: Of the log that the records are of.
            now_ms: Wall clock.
        """
        self._take_markers(view)
        attempts = sorted(self._attempts, key=lambda attempt: attempt.time_ms or 0)
        for attempt in attempts:
            # The base record of a new driver aborts attempts without a record of their own.
            if attempt.outcome == OPEN and attempt.key in view.aborted_attempts:
                attempt.outcome, attempt.reason = ABORTED, attempt.reason or "its driver was gone"
        return JobHistory(
            job=job,
            identity=self._identity,
            now_ms=now_ms,
            attempts=attempts,
            sessions=[self._sessions[epoch] for epoch in sorted(self._sessions)],
            recoveries=self._recoveries,
            retained=_retained(view),
            backends=self._backends(attempts, view),
            tasks=sorted(
                self._tasks.values(), key=lambda t: (-t.times_slowest, -t.longest_ms, t.task)
            ),
            days=_days(attempts, self._requests),
            newest_batch=self._newest_batch,
            clean_up_error=self._clean_up_error,
            last_verified=_with_age(self._last_verified, attempts),
            verify_errors=self._verify_errors,
            first_event_ms=self._first_event_ms,
            missing_events=self._missing_events,
        )

    def _session(self, epoch: int) -> Session:
        return self._sessions.setdefault(epoch, Session(epoch))

    def _attempt(self, key: tuple[int, int] | None, checkpoint_id: str = "") -> Attempt:
        """Return the attempt that is known by either, made if it is new."""
        found = self._by_id.get(checkpoint_id) if checkpoint_id else None
        if found is None and key is not None:
            found = self._by_key.get(key)
        if found is None:
            found = Attempt(key)
            self._attempts.append(found)
            if len(self._attempts) > _MOST_ATTEMPTS:
                self._forget(self._attempts.popleft())
        if key is not None:
            found.key = key
            self._by_key[key] = found
        if checkpoint_id and not found.checkpoint_id:
            found.checkpoint_id = checkpoint_id
            found.began_ms = _millis_of(checkpoint_id)
            self._by_id[checkpoint_id] = found
        return found

    def _forget(self, attempt: Attempt) -> None:
        if attempt.key is not None:
            self._by_key.pop(attempt.key, None)
        self._by_id.pop(attempt.checkpoint_id, None)

    def _take_commit(self, position: int, record: CommitRecord) -> None:
        self._identity = record.identity
        if record.batch < 0 or not record.versions:
            return  # the empty one, with which a log begins
        attempt = self._attempt((record.attempt_epoch, record.attempt), record.checkpoint_id)
        attempt.batch, attempt.position, attempt.outcome = record.batch, position, COMMITTED
        attempt.was_rolled_forward |= record.epoch > record.attempt_epoch

    def _began(self, event: Event) -> None:
        session, details = self._session(event.epoch), event.details
        session.began_ms = event.time_ms
        session.partitions = _integer(details, "partitions")
        session.backends = _texts(details, "backends")
        session.log_backend = _text(details, "log_backend")
        session.limits = _texts(details, "limits")
        session.from_commit = _integer(details, "commit_position")
        session.head = _integer(details, "head")
        self._pending, self._pause_ms, self._rows_in = None, None, 0

    def _started(self, event: Event) -> None:
        self._session(event.epoch).phases_ms = _phases(event.details)

    def _restarted(self, event: Event) -> None:
        session = self._session(event.epoch)
        session.restart = _redacted(event.details, "reason") or "no reason given"
        session.restart_number = _integer(event.details, "number")

    def _recovered(self, event: Event) -> None:
        details = event.details
        sources = [str(source) for source in _mapping(details, "restored").values()]
        fetched = [source for source in sources if source != LOCAL]
        self._recoveries.append(
            Recovery(
                event.time_ms,
                event.epoch,
                _text(details, "reason"),
                _integer(details, "head"),
                len(fetched),
                tuple(sorted({*fetched})),
                _integer(details, "bytes_fetched") or 0,
                len(_texts(details, "replayed")),
                _integer(details, "rows_replayed") or 0,
                _number(details, "elapsed_ms"),
                _phases(details),
                tuple(map(redact_text, _texts(details, "failures"))),
            )
        )

    def _processed(self, event: Event) -> None:
        details = event.details
        batch = _integer(details, "batch")
        if batch is not None:
            self._take_batch(event.epoch, batch)
        self._rows_in += _integer(details, "rows_in") or 0
        pause_ms = _number(details, "max_pause_ms")
        if pause_ms is not None:
            self._pause_ms = max(self._pause_ms or 0, pause_ms)

    def _take_batch(self, epoch: int, batch: int) -> None:
        if epoch >= self._reset_epoch and (
            self._newest_batch is None or batch > self._newest_batch
        ):
            self._newest_batch = batch

    def _uploaded(self, event: Event) -> None:
        details = event.details
        number, task = _integer(details, "attempt"), _text(details, "task")
        if number is None or not task:
            return
        key = (event.epoch, number)
        pending = self._pending
        if pending is None or pending.key != key:
            pending = self._pending = Attempt(key, _integer(details, "batch"))
        self._add_upload(pending, task, details)

    def _add_upload(self, pending: Attempt, task: str, details: Mapping[str, Any]) -> None:
        elapsed_ms = max(0, _integer(details, "elapsed_ms") or 0)
        pending.tasks_uploaded = (pending.tasks_uploaded or 0) + 1
        figures = self._tasks.setdefault(task, TaskFigures(task))
        figures.uploads += 1
        figures.total_ms += elapsed_ms
        figures.longest_ms = max(figures.longest_ms, elapsed_ms)
        figures.bytes += _integer(details, "bytes") or 0
        if elapsed_ms >= pending.slowest_ms:
            pending.slowest_task, pending.slowest_ms = task, elapsed_ms
        state_bytes = _integer(details, "state_bytes")
        if state_bytes:
            self._state_bytes += state_bytes - (figures.state_bytes or 0)
            figures.state_bytes = state_bytes
        changed = _integer(details, "changed_bytes")
        if changed is not None:
            pending.changed_bytes = (pending.changed_bytes or 0) + changed
        uploads = _mapping(details, "uploads")
        for backend in uploads:
            given = _mapping(uploads, backend)
            taken = pending.uploads.setdefault(backend, BackendFigures())
            taken.bytes += _integer(given, "bytes") or 0
            taken.slowest_ms = max(taken.slowest_ms, _integer(given, "elapsed_ms") or 0)

    def _committed(self, event: Event) -> None:
        details = event.details
        checkpoint_id = _text(details, "checkpoint_id")
        if not checkpoint_id:
            return
        batch, pending = _integer(details, "batch"), self._pending
        is_its = pending is not None and pending.batch == batch
        attempt = self._attempt(pending.key if pending and is_its else None, checkpoint_id)
        attempt.outcome, attempt.ended_ms, attempt.batch = COMMITTED, event.time_ms, batch
        attempt.position = _integer(details, "position")
        attempt.tasks_uploaded = _integer(details, "tasks_uploaded")
        attempt.bytes_uploaded = _integer(details, "bytes_uploaded")
        attempt.was_rolled_forward = details.get("was_rolled_forward") is True
        attempt.skipped = _integer(details, "skipped") or 0
        attempt.blocked_ms = _number(details, "blocked_ms") or 0
        if not attempt.was_rolled_forward:
            attempt.elapsed_ms = _number(details, "elapsed_ms")
            self._take_phases(attempt, details)
        if pending is not None and is_its:
            attempt.uploads, attempt.changed_bytes = pending.uploads, pending.changed_bytes
            attempt.slowest_task, attempt.slowest_ms = pending.slowest_task, pending.slowest_ms
            self._tasks[pending.slowest_task].times_slowest += 1
        epoch = attempt.key[0] if attempt.key else event.epoch
        attempt.backends = self._backends_in(epoch) or tuple(attempt.uploads)
        if isinstance(details.get("left_out"), list):
            attempt.left_out = _texts(details, "left_out")
        attempt.state_bytes = self._state_bytes or None
        attempt.rows_in, self._rows_in = self._rows_in, 0
        self._pending = self._pause_ms = None

    def _take_phases(self, attempt: Attempt, details: Mapping[str, Any]) -> None:
        for phase in PHASES:
            given = _number(details, f"{phase}_ms")
            if given is not None:
                attempt.phases[phase] = given
        if self._pause_ms is not None:  # on Spark, where tasks stand still in the batch
            attempt.phases["pause"] = self._pause_ms
        elif attempt.phases.get("pause"):  # in plain Python it is the whole wait for the upload
            attempt.phases["wait"] = 0
        else:
            attempt.phases.pop("pause", None)

    def _aborted(self, event: Event) -> None:
        epoch = _integer(event.details, "attempt_epoch")
        number = _integer(event.details, "attempt")
        if epoch is None or number is None:
            return
        attempt = self._attempt((epoch, number))
        attempt.outcome, attempt.ended_ms = ABORTED, event.time_ms
        attempt.reason = _redacted(event.details, "reason") or attempt.reason
        batch = _integer(event.details, "batch")
        attempt.batch = attempt.batch if batch is None else batch
        if self._pending is not None and self._pending.key == attempt.key:
            attempt.uploads = self._pending.uploads
            attempt.tasks_uploaded = self._pending.tasks_uploaded
            attempt.bytes_uploaded = sum(found.bytes for found in attempt.uploads.values())
            self._pending = None

    def _cleaned_up(self, _event: Event) -> None:
        self._clean_up_error = ""

    def _clean_up_failing(self, event: Event) -> None:
        minutes = _integer(event.details, "minutes")
        self._clean_up_error = f"for {minutes} minutes: {_redacted(event.details, 'error')}"

    def _verified(self, event: Event) -> None:
        details = event.details
        self._last_verified = Verified(
            event.time_ms,
            _integer(details, "position"),
            _integer(details, "batch"),
            _texts(details, "backends"),
        )
        self._verify_errors = []

    def _verify_failed(self, event: Event) -> None:
        details = event.details
        if details.get("is_damaged") is True:
            copy = f"{_text(details, 'task')} in {_text(details, 'backend') or 'every backend'}"
            commit = _integer(details, "position")
            self._verify_errors = [
                *self._verify_errors[-_MOST_VERIFY_ERRORS:],
                f"commit {commit}, {copy}: {_redacted(details, 'error')}",
            ]

    def _requested(self, event: Event) -> None:
        of_day = self._requests.setdefault(_day_of(event.time_ms), {})
        by_backend = _mapping(event.details, "requests")
        for backend in by_backend:
            counts = _mapping(by_backend, backend)
            of_backend = of_day.setdefault(backend, Counter())
            for operation in counts:
                of_backend[operation] += _integer(counts, operation) or 0

    def _fenced(self, event: Event) -> None:
        session = self._session(event.epoch)
        session.error = f"fenced by epoch {_integer(event.details, 'newer_epoch')}"

    def _stopped(self, event: Event) -> None:
        session = self._session(event.epoch)
        session.has_stopped, session.ended_ms = True, event.time_ms
        session.error = _redacted(event.details, "error") or session.error

    def _backends_in(self, epoch: int) -> tuple[str, ...]:
        session = self._sessions.get(epoch)
        return session.backends if session else ()

    def _take_markers(self, view: LogView) -> None:
        """Let the markers of the newest commit tell which backends have it whole."""
        commit, holders = view.last_commit, _holders(view)
        attempt = self._by_id.get(commit.checkpoint_id) if commit else None
        if attempt is None or attempt.key is None or holders is None:
            return
        known = attempt.backends or self._backends_in(attempt.key[0])
        lacking = attempt.left_out or ()
        attempt.backends = tuple(dict.fromkeys([*known, *sorted(holders)]))
        attempt.left_out = tuple(
            name for name in attempt.backends if name in lacking or name not in holders
        )

    def _backends(self, attempts: Sequence[Attempt], view: LogView) -> list[Backend]:
        given = [self._sessions[epoch].backends for epoch in sorted(self._sessions, reverse=True)]
        current = next((backends for backends in given if backends), ())
        before = dict.fromkeys(
            name for attempt in attempts for name in (*attempt.backends, *attempt.uploads)
        )
        bad = Counter(backend for backend, _, _, _ in view.bad_markers)
        return [
            _backend(name, attempts, bad[name], is_current=not current or name in current)
            for name in dict.fromkeys([*current, *before])
        ]


def _holders(view: LogView) -> set[str] | None:
    """Return the backends with a good marker of every task in the newest commit; None: none tells."""
    commit = view.last_commit
    if commit is None:
        return None
    try:
        bad = {backend for backend, *_ in bad_markers_of(commit, view.bad_markers)}
        found = [checkpoint_of(commit, task) for task in commit.checkpoints]
    except CheckpointCorruptError:
        return None
    # A task without any has no state yet.
    held: list[set[str]] = [
        {*each.state_markers} for each in found if each is not None and each.state_markers
    ]
    return held[0].intersection(*held[1:]) - bad if held else None


def _backend(
    name: str, attempts: Sequence[Attempt], bad_markers: int, *, is_current: bool
) -> Backend:
    commits = [attempt for attempt in attempts if attempt.outcome == COMMITTED]
    behind = _behind(name, commits) if is_current else None
    whole = None if behind is None else commits[-1 - behind]
    took = sorted(c.uploads[name].slowest_ms for c in commits if name in c.uploads)
    failures = [a.reason for a in attempts if name in _FAILED_BACKEND.findall(a.reason)]
    return Backend(
        name=name,
        is_current=is_current,
        is_left_out=is_current and bool(commits) and commits[-1].is_whole_in(name) is False,
        behind_commits=behind,
        behind_ms=None if whole is None else (commits[-1].time_ms or 0) - (whole.time_ms or 0),
        uploads=len(took),
        bytes=sum(a.uploads[name].bytes for a in attempts if name in a.uploads),
        median_ms=took[len(took) // 2] if took else None,
        longest_ms=took[-1] if took else None,
        failures=len(failures),
        last_failure=failures[-1] if failures else "",
        bad_markers=bad_markers,
    )


def _behind(name: str, commits: Sequence[Attempt]) -> int | None:
    for count, commit in enumerate(reversed(commits)):
        is_whole = commit.is_whole_in(name)
        if is_whole or is_whole is None:
            return count if is_whole else None
    return None


def _retained(view: LogView) -> list[RetainedCommit]:
    pins: dict[int, dict[str, int]] = {}
    for name, position in view.pins.items():
        pins.setdefault(position, {})[name] = view.pin_expiries.get(name, 0)
    return [
        RetainedCommit(
            position,
            entry.batch,
            entry.checkpoint_id,
            _millis_of(entry.checkpoint_id) or 0,
            entry.attempt[0],
            entry.query_id,
            pins.get(position, {}),
            position == view.last_commit_position,
        )
        for position, entry in view.commits.items()
    ]


_MS_PER_DAY: Final = 86_400_000


def _day_of(time_ms: int) -> int:
    return time_ms // _MS_PER_DAY * _MS_PER_DAY


def _days(
    attempts: Iterable[Attempt], requests: Mapping[int, Mapping[str, Mapping[str, int]]]
) -> list[Day]:
    by_day: dict[int, list[Attempt]] = {date_ms: [] for date_ms in requests}
    for attempt in attempts:
        if attempt.time_ms is not None:
            by_day.setdefault(_day_of(attempt.time_ms), []).append(attempt)
    return [
        _day(date_ms, found, requests.get(date_ms, {})) for date_ms, found in sorted(by_day.items())
    ]


def _day(
    date_ms: int, attempts: Sequence[Attempt], requests: Mapping[str, Mapping[str, int]]
) -> Day:
    sizes = Counter[str]()
    for attempt in attempts:
        for backend, figures in attempt.uploads.items():
            sizes[backend] += figures.bytes
        if not attempt.uploads and attempt.bytes_uploaded:
            sizes[""] += attempt.bytes_uploaded
    return Day(
        date_ms,
        commits=sum(attempt.outcome == COMMITTED for attempt in attempts),
        aborted=sum(attempt.outcome == ABORTED for attempt in attempts),
        task_uploads=sum(attempt.tasks_uploaded or 0 for attempt in attempts),
        bytes=dict(sizes),
        requests={name: dict(counts) for name, counts in requests.items()},
    )


def _millis_of(checkpoint_id: str) -> int | None:
    try:
        millis = CheckpointId.parse(checkpoint_id).millis
    except CheckpointCorruptError:
        return None
    return millis if millis <= LATEST_MS else None


def _number(details: Mapping[str, Any], name: str) -> float | None:
    value = details.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _integer(details: Mapping[str, Any], name: str) -> int | None:
    value = _number(details, name)
    return None if value is None else int(value)


def _text(details: Mapping[str, Any], name: str) -> str:
    value = details.get(name)
    return value if isinstance(value, str) else ""


def _redacted(details: Mapping[str, Any], name: str) -> str:
    """Return what an error said; older releases stored it with the secrets in it."""
    return redact_text(_text(details, name))


def _texts(details: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = details.get(name)
    return tuple(map(str, cast("Sequence[Any]", value))) if isinstance(value, list) else ()


def _with_age(verified: Verified | None, attempts: Sequence[Attempt]) -> Verified | None:
    if verified is None or verified.position is None:
        return verified
    times = (a.time_ms for a in reversed(attempts) if a.position == verified.position)
    return replace(verified, commit_ms=next(times, None))


def _phases(details: Mapping[str, Any]) -> dict[str, float]:
    phases = _mapping(details, "phases_ms")
    return {name: ms for name in phases if (ms := _number(phases, name)) is not None}


def _mapping(details: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = details.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
