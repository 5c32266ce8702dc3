"""What a job needs on this machine and in its backends, looked at without changing anything."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from statekeep.backends.base import StateBackendAdmin
from statekeep.backends.registry import BackendRegistry
from statekeep.checkpoint.log_reader import LogReader
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import (
    CheckpointCorruptError,
    ConfigError,
    RetriableError,
    StateBackupError,
    UnknownFormatError,
)
from statekeep.inspection.findings import Level, findings_of
from statekeep.inspection.history import JobHistory
from statekeep.inspection.history_watch import watch_history
from statekeep.inspection.job import LogStorage, no_such_job, open_log_storage, tasks_with_logs
from statekeep.stores.local_files import LOCAL_DIR_KEY

Status = Literal["ok", "warn", "fail"]

_PACKAGES: Final = ("rocksdict", "pyspark", "pyarrow", "pandas")
_OLDEST_JAVA: Final = 17
_JAVA_TIMEOUT_S: Final = 30
_LEAST_FREE: Final = 0.1
"""Of a disk: RocksDB writes new files before it deletes old ones, and a restore needs room beside them."""
_STATUS_OF: Final[dict[Level, Status]] = {"good": "ok", "warn": "warn", "bad": "fail"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    what: str
    status: Status
    found: str
    remedy: str = ""
    is_setting: bool = False
    """Whether what is wrong is a setting: no other try helps."""


def check_settings(config: Config) -> Check:
    """Check the settings all together, as the start of a job does."""
    try:
        config.check()
    except ConfigError as exc:
        return of_error("settings", exc)
    return Check("settings", "ok", f"{len(config.settings)} given, for job {config.job.name}")


def check_proof(config: Config) -> Check:
    """Say whether anything restores backups before they are needed."""
    interval_ms = config.job.verify_interval_ms
    if interval_ms:
        return Check("proof", "ok", f"a task is restored every {interval_ms / 3_600_000:g} h")
    remedy = "set job.verify.interval.ms=86400000, or let a scheduler run `statekeep verify`"
    return Check("proof", "ok", "the job does not restore backups by itself to verify them", remedy)


def check_machine(config: Config) -> Iterator[Check]:
    """Check versions and the local disk. Blocks."""
    found = f"statekeep {version('statekeep')}, Python {platform.python_version()}"
    yield Check("versions", "ok", f"{found}, {', '.join(map(_package, _PACKAGES))}")
    yield _java()
    yield from check_disk(config.job.local_dir)


async def check_job(config: Config, clock: Clock, task: str | None) -> list[Check]:
    """Check that the backends answer, and what the records of the job say."""
    try:
        BackendRegistry(config).factories()
        async with open_log_storage(config, clock, task=task) as storage:
            checks = [
                await _backend(name, factory.admin(storage.executor, clock))
                for name, factory in storage.factories.items()
            ]
            checks.append(await _log(config, storage, task))
        if checks[-1].status == "ok":
            checks += await _history(config, clock, task)
    except StateBackupError as exc:
        return [of_error("backends", exc)]
    return checks


def of_error(what: str, error: StateBackupError) -> Check:
    """Return the check that an error is the answer to."""
    remedy = "; ".join([*error.hints, *getattr(error, "__notes__", ())])
    if isinstance(error, RetriableError):
        remedy = remedy or "see that the service runs and can be reached from here, then try again"
    return Check(what, "fail", error.message, remedy, is_setting=isinstance(error, ConfigError))


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"


def _java() -> Check:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    need = f"Spark needs Java {_OLDEST_JAVA} or later: install it, or set JAVA_HOME"
    if java is None:
        return Check("Java", "warn", "none on the path, and JAVA_HOME is not set", need)
    try:
        done = subprocess.run(  # noqa: S603 - the Java that Spark would start
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return Check("Java", "warn", f"{java} does not start: {exc}", need)
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if match is None:
        return Check("Java", "warn", f"{java} does not report its version", need)
    is_new = int(match[1]) >= _OLDEST_JAVA
    # No failure: a job in plain Python needs none, and its settings do not tell that it is one.
    return Check("Java", "ok" if is_new else "warn", f"{match[1]} ({java})", "" if is_new else need)


def check_disk(local_dir: Path) -> Iterator[Check]:
    """Check that the local directory can be written to, and has room. Blocks."""
    there = next(path for path in (local_dir, *local_dir.parents) if path.exists())
    remedy = f"make it writable for this user, or set {LOCAL_DIR_KEY} to a directory that is"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Check("local directory", "fail", f"{there} cannot be written to", remedy)
        return
    yield Check("local directory", "ok", f"{local_dir} can be written to")
    usage = shutil.disk_usage(there)
    is_low = usage.free < _LEAST_FREE * usage.total
    yield Check(
        "local disk",
        "warn" if is_low else "ok",
        f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB are free at {there}",
        f"make room, or set {LOCAL_DIR_KEY} to a larger disk" if is_low else "",
    )


async def _backend(name: str, admin: StateBackendAdmin) -> Check:
    what = f"backend {name}"
    problem = await _problem_of(what, admin.validate_resources())
    await admin.close()
    return problem or Check(what, "ok", "answers, and can do what is needed")


async def _log(config: Config, storage: LogStorage, task: str | None) -> Check:
    what = f"job log in {storage.log_backend}"
    reader = LogReader(storage.log)
    try:
        if not await storage.log.is_there() or not await reader.catch_up():
            if task is None and (tasks := await tasks_with_logs(config, storage)):
                found = f"a log for each task, as in plain Python: {', '.join(tasks)}"
                return Check(what, "warn", found, "look at one of them with --task")
            (elsewhere,) = no_such_job(config, storage.log_backend, task).hints
            remedy = f"it comes with the first start of the job; if it has run before, {elsewhere}"
            return Check(what, "warn", "there is none here", remedy)
        reader.require_here()
    except UnknownFormatError as exc:
        return Check(what, "fail", exc.message, "use the newer version of Statekeep that wrote it")
    except StateBackupError as exc:
        return of_error(what, exc)
    view = reader.view
    found = f"readable, epoch {view.epoch}, {len(view.commits)} commits to restore from"
    return Check(what, "ok", found)


async def _history(config: Config, clock: Clock, task: str | None) -> list[Check]:
    async with watch_history(config, clock, task=task) as watch:
        history = await watch.poll()
    checks = [
        Check("job", _STATUS_OF[finding.level], finding.text, finding.remedy)
        for finding in findings_of(history)
    ]
    return checks + list(_clock_of(history))


def _clock_of(history: JobHistory) -> Iterator[Check]:
    newest = max((s.last_event_ms or 0 for s in history.sessions), default=0)
    ahead_s = (newest - history.now_ms) / 1000
    if ahead_s > 1:
        yield Check(
            "clock",
            "warn",
            f"the driver's clock is {ahead_s:.0f} s ahead of this machine's",
            "let both set their clocks by NTP; times in the log are labels, nothing depends on them",
        )


async def _problem_of(what: str, checking: Awaitable[None]) -> Check | None:
    try:
        await checking
    except (ConfigError, RetriableError, CheckpointCorruptError) as exc:
        return of_error(what, exc)
    return None
