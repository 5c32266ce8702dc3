"""What a person should know of a job at once, by its history."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from statekeep.inspection.history import ABORTED, JobHistory

Level = Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know, with what to do."""

    level: Level
    text: str
    remedy: str = ""


def findings_of(history: JobHistory) -> list[Finding]:
    """Return what is wrong, the worst first; one good word where nothing is."""
    found = sorted(_problems(history), key=lambda finding: _RANKS[finding.level])
    return found or [Finding("good", "nothing is wrong by the records")]


_RANKS: Final = {"bad": 0, "warn": 1, "good": 2}


def _problems(history: JobHistory) -> Iterator[Finding]:
    session = history.session
    if session is not None and session.error:
        yield Finding(
            "bad",
            f"the newest driver session ended with an error: {session.error}",
            "start the job",
        )
    silent_h = _silent_ms(history) // _MS_PER_HOUR
    if silent_h:
        yield Finding(
            "warn",
            f"the newest driver session has told of no end, and of nothing else for {silent_h} h",
            "see whether the job runs, and start it if it does not; one that gets no input is silent too",
        )
    failed = _failed_in_a_row(history)
    if failed:
        yield Finding(
            "bad" if failed > 1 else "warn",
            f"attempts at a commit aborted in a row: {failed}: {history.attempts[-1].reason}",
            "`statekeep doctor` asks the backends",
        )
    for backend in history.backends:
        if backend.is_left_out:
            yield Finding(
                "bad",
                f"the newest commit lacks state in backend {backend.name}",
                f"repair the backend; the job then adds what is missing by itself: "
                f"{backend.last_failure}",
            )
        if backend.bad_markers:
            yield Finding(
                "warn",
                f"{backend.bad_markers} backups in backend {backend.name} were found bad and are not used",
                "`statekeep verify` checks the newest commit",
            )
    for error in history.verify_errors:
        yield Finding(
            "bad",
            f"a copy cannot be restored: {error}",
            "`statekeep verify` looks at all tasks; repair the backend while other copies are "
            "whole",
        )
    if history.clean_up_error:
        yield Finding(
            "warn",
            f"old backups are not deleted {history.clean_up_error}",
            "allow the job to delete in its backends; nothing is lost meanwhile",
        )
    if not history.retained:
        yield Finding("warn", "no commit is retained yet", "wait for task.commit.ms")


_MS_PER_HOUR: Final = 3_600_000


def _silent_ms(history: JobHistory) -> int:
    """Return for how long nothing is on record of a job whose end is not on record either."""
    telling = [each for each in history.sessions if each.last_event_ms is not None]
    if not telling or telling[-1].has_stopped or telling[-1].error:
        return 0
    times = [telling[-1].last_event_ms, *(each.time_ms for each in history.attempts)]
    return max(0, history.now_ms - max(time_ms for time_ms in times if time_ms is not None))


def _failed_in_a_row(history: JobHistory) -> int:
    count = 0
    for attempt in reversed(history.attempts):
        if attempt.outcome != ABORTED:
            break
        count += 1
    return count
