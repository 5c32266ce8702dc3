"""``statekeep events``: the job log, read as a history."""

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, Final, cast

import msgspec
import typer

from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.event_log import Event
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BadMarkerRecord,
    BaseRecord,
    BatchRecord,
    CommitRecord,
    EpochRecord,
    KeptRecord,
    MovedRecord,
    PinRecord,
    Record,
    ReleaseRecord,
    StateChange,
    UnpinRecord,
)
from statekeep.cli.job_reading import read_job
from statekeep.cli.options import (
    AsJson,
    IsFull,
    JobOptions,
    LogOfTask,
    shared_options,
)
from statekeep.cli.output import JsonValue, print_json, print_table, utc
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.config.redact import redact_text


@shared_options
def events(
    *,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=1, help="Only this many, the newest.")
    ] = None,
    is_progress: Annotated[
        bool,
        typer.Option("--progress", help="What the job did, with bytes and times, not its log."),
    ] = False,
    options: JobOptions,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Show what happened to the job.

    From its log: driver sessions, batches, commits, aborted attempts, releases, pins.
    """

    async def run() -> list[dict[str, JsonValue]]:
        async with read_job(options.settings(), SystemClock(), task=task) as job:
            if is_progress:
                async with waiting("reading the events", job.clock):
                    return [_progress(event) for event in await job.progress()]
            return [_row(position, record) for position, record in job.records]

    rows = asyncio.run(run())
    rows = rows[-last:] if last else rows
    if as_json:
        print_json(rows)
    elif is_progress:
        print_table(
            ["time", "epoch", "event", "what"],
            [[row["time"], row["epoch"], row["event"], _details(row["details"])] for row in rows],
            if_empty="no events are kept",
            prose={"what"},
            is_full=is_full,
        )
    else:
        columns = ["position", "epoch", "event", "what"]
        print_table(
            columns,
            [[row[column] for column in columns] for row in rows],
            if_empty="the job log is empty",
            prose={"what"},
            is_full=is_full,
        )


def _progress(event: Event) -> dict[str, JsonValue]:
    return {
        "time": utc(event.time_ms),
        "epoch": event.epoch,
        "sequence": event.sequence,
        "event": event.kind,
        "details": _without_secrets(event.details),
    }


def _details(details: JsonValue) -> str:
    """Return the details of an event in one line, without those that say nothing."""
    named = cast("Mapping[str, JsonValue]", details)
    shown = {name: value for name, value in named.items() if value not in (None, [], {})}
    return " ".join(f"{name}={_plain(value)}" for name, value in shown.items())


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _row(position: int, record: Record) -> dict[str, JsonValue]:
    return {
        "position": position,
        "epoch": record.epoch,
        "event": str(type(record).__struct_config__.tag),
        "what": describe(record),
        "facts": _facts(record),
    }


def _facts(record: Record) -> dict[str, JsonValue]:
    """Return the fields of a record, for programs; not the checkpoints, which only restores read."""
    fields = cast("dict[str, JsonValue]", json.loads(msgspec.json.encode(record)))
    shown = {name: value for name, value in fields.items() if name not in _SHOWN_OTHERWISE}
    return _without_secrets(shown)


def _without_secrets(fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Hide the secrets in what errors said, which older releases stored as it was."""
    shown = dict(fields)
    for name in _OF_ERRORS & fields.keys():
        value = fields[name]
        if isinstance(value, str):
            shown[name] = redact_text(value)
        elif isinstance(value, list):
            shown[name] = [redact_text(each) if isinstance(each, str) else each for each in value]
    return shown


_OF_ERRORS: Final = frozenset({"error", "failures", "reason"})

_SHOWN_OTHERWISE: Final = frozenset({"type", "epoch", "nonce", "checkpoints", "commit"})


def _change(change: StateChange) -> str:
    what = f" {change.keys} keys {change.variable}".rstrip() if change.keys else ""
    return f"{change.kind}{what} by {change.by}, {redact_text(change.reason)}"


def describe(record: Record) -> str:  # noqa: PLR0911 - one line for each kind of record
    """Return one line for people about a record."""
    match record:
        case EpochRecord():
            what = "resets the job" if record.is_reset else "takes over"
            return f"{record.owner} {what}"
        case BaseRecord():
            return f"starts from commit {record.commit_position}, batch {record.head}"
        case BatchRecord():
            rows = sum(task.rows_in for task in record.tasks.values())
            return f"batch {record.batch}: {rows} rows in {len(record.tasks)} tasks"
        case AttemptRecord():
            return f"attempt {record.attempt} begins to commit batch {record.batch}"
        case CommitRecord():
            moment = utc(CheckpointId.parse(record.checkpoint_id).millis)
            attempt = f"{record.attempt_epoch}-{record.attempt}"
            shown = f"batch {record.batch} is committed by attempt {attempt}, begun {moment}"
            return shown if record.change is None else f"{shown}: {_change(record.change)}"
        case AbortRecord():
            attempt = f"{record.attempt_epoch}-{record.attempt}"
            return f"attempt {attempt} was aborted: {redact_text(record.reason)}"
        case ReleaseRecord():
            return f"commits {', '.join(map(str, record.positions))} are released"
        case PinRecord():
            until = f" until {utc(record.expires_ms)}" if record.expires_ms else ""
            return f"commit {record.position} is pinned as {record.name}{until}"
        case UnpinRecord():
            return f"{record.name} is not a pin any more"
        case KeptRecord():
            return f"commit {record.position} is written again for {', '.join(sorted(record.pins))}"
        case MovedRecord():
            return f"the log goes on in {record.backend}"
        case BadMarkerRecord():
            return (
                f"marker of {record.task}, {record.store} in {record.backend} is bad: "
                f"{redact_text(record.reason)}"
            )
