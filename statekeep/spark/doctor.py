"""``sk.doctor``: whether jobs can run in a Spark session, and what to do where they cannot."""

import platform
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import pyspark
from pyspark.sql import SparkSession
from typing_extensions import override

from statekeep.clock import SystemClock
from statekeep.config.load import load_dict, load_spark_conf
from statekeep.config.model import Config
from statekeep.config.query_defaults import with_query_defaults
from statekeep.errors import ConfigError, StateBackupError
from statekeep.inspection.doctor import (
    Check,
    check_disk,
    check_job,
    check_machine,
    check_proof,
    of_error,
)
from statekeep.spark.context_conf import context_conf, own_entries
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.opening import check_retention, tasks_of_a_new_job, wanted_tasks
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.own_loop import run_apart
from statekeep.spark.placement import slot_count
from statekeep.spark.redaction import check_redaction
from statekeep.spark.refused_settings import check_settings
from statekeep.spark.releases import RELEASE
from statekeep.spark.session import REQUIRED_SETTINGS, check_classic, is_umask_closed
from statekeep.stores.local_files import LOCAL_DIR_KEY

_TESTED: Final = ((4, 0), (4, 3))
"""The oldest and the newest release that docs/reference/versions.md has."""
_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_MANY_TASKS: Final = 64
_DYNAMIC: Final = "spark.dynamicAllocation.enabled"
_LEAST_EXECUTORS: Final = "spark.dynamicAllocation.minExecutors"
_CAUSE: Final = re.compile(r"\w*(Error|Exception): ")
"""Begins the last line of a stack of Python."""
_NO_JOB: Final = "of no job"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `doctor` has found. Printed, it is one line for each check, with what to do below."""

    checks: tuple[Check, ...]

    @property
    def is_sound(self) -> bool:
        """Whether no check has failed."""
        return all(check.status != "fail" for check in self.checks)

    @override
    def __str__(self) -> str:
        lines: list[str] = []
        for check in self.checks:
            lines.append(f"{check.status:4}  {check.what}: {check.found}")
            if check.remedy:
                lines.append(f"      -> {check.remedy}")
        return "\n".join(lines)

    __repr__ = __str__


def doctor(
    spark: SparkSession,
    settings: Settings | None = None,
    *,
    checkpoint_location: str | None = None,
    query_name: str | None = None,
) -> Diagnosis:
    """Look at a session, its executors, and all that a job in it needs; say what to do. Changes nothing.

    ``print(sk.doctor(spark))`` looks at what all jobs share. With the settings and the checkpoint location of a
    job it also looks at the job's backends and records, as ``statekeep doctor`` does.

    Args:
        spark: The session.
        settings: Of the job, as `grouped` takes them.
        checkpoint_location: Of the job's query.
        query_name: Of the job's query; None: it has none.
    """
    try:
        check_classic(spark)
    except ConfigError as exc:
        return Diagnosis((of_error("session", exc),))
    checks = list(_session(spark))
    try:
        conf = load_spark_conf(own_entries(spark))
        checks.append(_redaction(spark, conf))
        config = read_settings(settings, conf)
        if checkpoint_location is not None:
            location = CheckpointLocation(spark, checkpoint_location)
            config = with_query_defaults(
                config,
                location.uri,
                query_name,
                shared_uri=location.shared_uri,
                is_every_batch=False,
            )
            check_settings(config)
            checks.append(
                Check("settings", "ok", f"{len(config.settings)}, for job {config.job.name}")
            )
    except StateBackupError as exc:
        return Diagnosis((*checks, of_error("settings", exc)))
    return Diagnosis((*checks, *_job(spark, config)))


def _job(spark: SparkSession, config: Config) -> Iterator[Check]:
    """Check what depends on the settings of the job."""
    is_named = "job.name" in config.settings
    config = config.with_defaults({"job.name": _NO_JOB})
    yield _tasks(spark, config)
    yield _retention(spark, config)
    yield check_proof(config)
    yield from check_machine(config)
    yield from _executors(spark, config)
    if is_named and config.backend_names():
        yield from run_apart(check_job(config, SystemClock(), None))
    else:
        yield Check(
            "backends",
            "ok",
            "not looked at: no job is named, or none of its backends",
            "give the settings of a job and its checkpoint_location to look at them",
        )


def _session(spark: SparkSession) -> Iterator[Check]:
    conf, context = context_conf(spark), spark.sparkContext
    yield check_release(RELEASE, pyspark.__version__)
    given = {
        key: str(value)
        for key in (
            *(setting.key for setting in REQUIRED_SETTINGS),
            _SOCKETS,
            _DYNAMIC,
            _LEAST_EXECUTORS,
        )
        if (value := conf.get(key, None)) is not None
    }
    master = context.master or ""
    is_local = master.startswith("local") and not master.startswith("local-cluster[")
    yield from check_conf(given, is_local=is_local, has_sockets=RELEASE >= (4, 1))


def check_release(release: tuple[int, ...], name: str) -> Check:
    """Say whether a release of PySpark is one of those that were tested."""
    oldest, newest = (".".join(map(str, bound)) for bound in _TESTED)
    if _TESTED[0] <= release <= _TESTED[1]:
        return Check("PySpark", "ok", f"{name}; tested are {oldest} to {newest}")
    remedy = f"install pyspark {oldest} to {newest}: docs/reference/versions.md has what was tested"
    is_newer = release > _TESTED[1]
    return Check("PySpark", "warn" if is_newer else "fail", f"{name} was not tested", remedy)


def check_conf(given: Mapping[str, str], *, is_local: bool, has_sockets: bool) -> Iterator[Check]:
    """Check the settings of a SparkContext.

    Args:
        given: Those that are set.
        is_local: Driver and executor are one process.
        has_sockets: This Spark can talk to its Python workers by Unix sockets.
    """
    for setting in REQUIRED_SETTINGS:
        actual = given.get(setting.key, setting.default)
        if setting.is_met(actual):
            yield Check(setting.key, "ok", actual)
        else:
            remedy = f"build the session with sk.session_builder(), or set it to {setting.value} at its start"
            yield Check(setting.key, "fail", f"{actual}: {setting.reason}", remedy, is_setting=True)
    if has_sockets:
        yield _sockets(given.get(_SOCKETS, "false").lower() == "true", is_local=is_local)
    if (
        given.get(_DYNAMIC, "false").lower() == "true"
        and int(given.get(_LEAST_EXECUTORS, "0")) == 0
    ):
        found = "0: all tasks may run on the first executor until the next commit"
        yield Check(_LEAST_EXECUTORS, "warn", found, "set it to what the query needs")


def _sockets(is_on: bool, *, is_local: bool) -> Check:  # noqa: FBT001 - the one thing that it is about
    if is_on and is_local and not is_umask_closed():
        found = "true, and other users of this machine may write to the sockets"
        return Check(_SOCKETS, "warn", found, "start the driver with umask 022 or a stricter one")
    if is_on:
        return Check(_SOCKETS, "ok", "true")
    if is_local:
        found = "false: the first rows of a batch reach a Python worker after 41 ms instead of 4"
        remedy = "build the session with sk.session_builder(), with umask 022 or a stricter one"
        return Check(_SOCKETS, "warn", found, remedy)
    # Elsewhere the temporary directory may be too long for the name of a socket.
    return Check(_SOCKETS, "ok", "false, as is safe on any cluster")


def _redaction(spark: SparkSession, conf: Config) -> Check:
    what = "secrets in the Spark conf"
    try:
        check_redaction(spark, conf)
    except ConfigError as exc:
        return of_error(what, exc)
    return Check(what, "ok", f"none is shown; settings of ours in the conf: {len(conf.settings)}")


def _tasks(spark: SparkSession, config: Config) -> Check:
    tasks = wanted_tasks(config, 1) or tasks_of_a_new_job(spark, 1)
    return check_tasks(tasks, slot_count(spark, tasks), is_given=config.task.count is not None)


def check_tasks(tasks: int, slots: int, *, is_given: bool) -> Check:
    """Check how many tasks an operator of a new job gets.

    Args:
        tasks: By ``task.count``, by ``spark.sql.shuffle.partitions``, or by default.
        slots: How many tasks of Spark run at a time.
        is_given: It is ``task.count`` that says so.
    """
    source = (
        "task.count" if is_given else "spark.sql.shuffle.partitions, or 32 where that is not set"
    )
    found = f"{tasks} for a new job, by {source}; {slots} run at a time"
    if tasks < slots:
        return Check(
            "tasks", "warn", found, f"set task.count to {slots} or more: other cores stay idle"
        )
    if tasks > _MANY_TASKS and not is_given:
        remedy = "set task.count: 16, 32 and 64 cost a batch the same, 200 cost half as much again"
        return Check("tasks", "warn", found, remedy)
    return Check("tasks", "ok", found)


def _retention(spark: SparkSession, config: Config) -> Check:
    what = "spark.sql.streaming.minBatchesToRetain"
    try:
        check_retention(spark, config.task.replay_max_batches)
    except ConfigError as exc:
        return of_error(what, exc)
    return Check(what, "ok", f"enough for task.replay.max.batches={config.task.replay_max_batches}")


def _executors(spark: SparkSession, config: Config) -> Iterator[Check]:
    """Check the package and the local disk where the tasks will run, by a small job of Spark's."""
    context = spark.sparkContext
    master = context.master or ""
    if master.startswith("local") and not master.startswith("local-cluster["):
        return
    given = config.settings.get(LOCAL_DIR_KEY)
    local_dir = None if given is None else given.value
    slots = slot_count(spark, 1)
    try:
        found: list[Any] = (
            context.parallelize(range(slots), slots).map(lambda _: look_around(local_dir)).collect()
        )
    except Exception as exc:  # noqa: BLE001 - Spark's, of whatever kind
        remedy = "docs/how-to/cluster.md shows how executors get the package"
        yield Check("executors", "fail", f"a small job fails there: {cause_of(exc)}", remedy)
        return
    yield from compare_executors({host: (versions, checks) for host, versions, checks in found})


def cause_of(error: Exception) -> str:
    """Return the line in which an error of Spark's says what went wrong on the executor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if _CAUSE.match(line)), lines[0] if lines else repr(error))


def look_around(local_dir: str | None) -> tuple[str, str, tuple[Check, ...]]:
    """Return host, versions and the checks of the local disk; on an executor."""
    settings = {"job.name": _NO_JOB} | ({} if local_dir is None else {LOCAL_DIR_KEY: local_dir})
    checks = tuple(check_disk(load_dict(settings).job.local_dir))
    return socket.gethostname(), _versions(), checks


def compare_executors(found: Mapping[str, tuple[str, tuple[Check, ...]]]) -> Iterator[Check]:
    """Yield what executors have found: their versions against those here, and the disks that need something.

    Args:
        found: By host the versions and the checks of its disk.
    """
    here, hosts = _versions(), ", ".join(sorted(found))
    others = sorted(f"{host}: {there}" for host, (there, _) in found.items() if there != here)
    if others:
        remedy = "give executors the package and the Python of the driver: docs/how-to/cluster.md"
        yield Check("executors", "fail", f"{'; '.join(others)}; the driver: {here}", remedy)
    else:
        yield Check("executors", "ok", f"{hosts}: {here}")
    for host, (_, checks) in sorted(found.items()):
        for check in checks:
            yield Check(f"{check.what} on {host}", check.status, check.found, check.remedy)


def _versions() -> str:
    return (
        f"statekeep {version('statekeep')}, Python {'.'.join(platform.python_version_tuple()[:2])}"
    )
