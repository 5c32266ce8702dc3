"""The settings of jobs, their restarts, tasks, containers, checkpoints and metrics."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from statekeep.config.key import keys_of, setting, setting_without_default
from statekeep.config.settings import Setting
from statekeep.config.values import (
    BOOLEAN,
    NAME,
    PATH,
    TEXT,
    ValueType,
    byte_count,
    decimal,
    milliseconds,
    name_list,
    one_of,
    whole_number,
)
from statekeep.errors import ConfigError

DivergenceAction = Literal["warn", "error"]
RestartStrategy = Literal["none", "fixed-delay", "exponential-delay"]

_LOCAL_DIR_VARIABLE: Final = "LOGGED_STORE_BASE_DIR"
_RESTARTS: Final[ValueType[RestartStrategy]] = one_of("none", "fixed-delay", "exponential-delay")
_DIVERGENCE: Final[ValueType[DivergenceAction]] = one_of("warn", "error")
_MIB: Final = 1 << 20


def default_local_dir() -> Path:
    """Return the local directory of a job that names none.

    As in Samza it is the one that the environment of this machine has, else one of each user.

    Raises:
        ConfigError: The environment's is no absolute path: processes of a job have working
            directories of their own.
    """
    key = keys_of(JobSettings)["local_dir"]
    text = key.default_of_variable
    if text is None:
        return Path(tempfile.gettempdir()) / f"statekeep-{os.getuid()}"
    found = Setting(key.name, text, f"environment {_LOCAL_DIR_VARIABLE}").parse(PATH)
    if not found.is_absolute():
        raise ConfigError(
            f"the local directory must be absolute: path={text} "
            f"source=environment {_LOCAL_DIR_VARIABLE}",
            key=key.name,
            hint=f"write the whole path into {_LOCAL_DIR_VARIABLE}",
        )
    return found


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What identifies a job, and where its state and its log live."""

    name: str = setting_without_default("job.name", NAME, "required")
    """Names the job: the first part of every local path and remote name. *Required: two jobs
    under one name would fence each other. On Spark the query gives it.*"""
    id: str = setting("job.id", NAME, "1")
    """Distinguishes instances of one job. *Most jobs run once; the value is Samza's.*"""
    local_dir: Path = setting_without_default(
        "job.logged.store.base.dir",
        PATH,
        f"`${_LOCAL_DIR_VARIABLE}`, else `<temporary directory>/statekeep-<user id>`",
        make=default_local_dir,
        variable=_LOCAL_DIR_VARIABLE,
    )
    """Local directory of all stores and versions. *Works everywhere without set-up. Name a disk
    of the executor that survives its restart, so that restores cost no download.*"""
    log_backend: str | None = setting(
        "job.log.backend", TEXT, None, default_text="the first listed backend that can"
    )
    """Backend that holds the job log and the checkpoints. *One location less to set up: most
    backends that keep the state can keep the log too.*"""
    standby_copies: int = setting(
        "job.standbytasks.replication.factor", whole_number(1, 10, what="copies"), 1
    )
    """On Spark: how many hosts keep the state of a task, including the one where it runs. With
    2, another host fetches the newest commit of the task in the background, after each commit. If
    the first host is lost, the task goes on there, and only the batches since that commit are
    replayed. *A copy costs a download after each commit, and as much disk again. The key and the
    value are Samza's.*"""
    start_from_checkpoint: str | None = setting(
        "job.start.from.checkpoint", TEXT, None, default_text="none"
    )
    """Checkpoint id of the newest commit. On Spark, a new query with a fresh checkpoint location
    then goes on from that commit; its batches are numbered from 0. The location of a query that
    did not begin from it is refused. *Without it, a lost checkpoint location is an error: a new
    query may deliver again what the old one delivered.*"""
    event_flush_interval_ms: int = setting(
        "job.event.store.write.buffer.flush.interval.ms", milliseconds(0), 10_000
    )
    """How long a progress event (bytes, times, retries) may wait before it is written. *Nothing
    depends on these events, and each flush is one request; Flink flushes to a file system every
    second.*"""
    event_buffer_bytes: int = setting("job.event.store.write.buffer.size", byte_count(1024), _MIB)
    """When progress events reach this many bytes, they are written at once, without waiting for the
    interval. While the store cannot be reached, the job keeps no more than that. *The value is Flink's.*"""
    verify_interval_ms: int = setting("job.verify.interval.ms", milliseconds(0), 0)
    """How often the driver, or a container in plain Python, proves that its newest commit can be
    restored. It restores one task, drawn at random, from each backend into a temporary directory
    and compares every checksum. A task that cannot be restored is reported at once, as an error in
    the log and an event. 0: never. *Off, as the proof fetches the state of a task
    from each backend: it needs room in the directory for temporary files, and a service may charge
    for the transfer. A day is a good value.*"""

    @property
    def instance_name(self) -> str:
        """The name under which a job in plain Python keeps its state: instances share none."""
        return self.name if self.id == "1" else f"{self.name}-{self.id}"


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Whether and when a failed query starts again."""

    strategy: RestartStrategy = setting("job.restart.strategy", _RESTARTS, "none")
    """What a query on Spark does when it fails with an error that may pass: end, or start again
    behind the same handle after a delay. *A query of Spark ends with its error, and often a
    scheduler starts it again. If both restart it, their attempts multiply. The words are
    Flink's.*"""
    attempts: int = setting("job.restart.attempts", whole_number(1, what="restarts"), 10)
    """Restarts in a row before the query ends with its error. *With the delays below about five
    minutes: longer than a store takes to restart.*"""
    backoff_initial_ms: int = setting("job.restart.backoff.initial.ms", milliseconds(0), 1_000)
    """Delay before the first restart; with `fixed-delay` before each one. *The value is
    Flink's.*"""
    backoff_max_ms: int = setting("job.restart.backoff.max.ms", milliseconds(0), 60_000)
    """Longest delay of `exponential-delay`. *The value is Flink's.*"""
    backoff_multiplier: float = setting("job.restart.backoff.multiplier", decimal(1, 100), 2.0)
    """Factor between two delays of `exponential-delay`. *Ten restarts then span minutes; Flink
    has 1.5, and no bound on attempts.*"""
    reset_after_ms: int = setting("job.restart.reset.after.ms", milliseconds(0), 3_600_000)
    """Time without a failure after which attempts and delays begin anew. *A failure an hour later
    most likely has another cause; the value is Flink's.*"""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How tasks commit, and how they read and replay their input."""

    count: int | None = setting(
        "task.count",
        whole_number(1),
        None,
        default_text="what the job has; for a new one `spark.sql.shuffle.partitions` where it is set, else 32",
    )
    """Number of tasks of an operator on Spark. A start with another number than the job has
    splits or merges the state into that many tasks. *A batch takes about the same time with 16, 32 or 64 tasks. More tasks can
    be spread over more executors.*"""
    commit_ms: int = setting("task.commit.ms", milliseconds(), 60_000)
    """Time between two commits; 0 or less: only on request. *A minute of replay at most, for
    about 1,440 commits a day; the value is Samza's.*"""
    commit_changed_bytes: int = setting("task.commit.changed.bytes", byte_count(0), 0)
    """On Spark, a commit is also due once batches have changed this many bytes of state since the
    last one began; 0: never by bytes. *Off, as a minute of changes is seldom much. It bounds what a
    restart replays where the rate of changes varies.*"""
    commit_max_delay_ms: int = setting(
        "task.commit.max.delay.ms", milliseconds(0), 60_000, aliases=("max.commit.delay",)
    )
    """How long processing goes on with a commit in flight before it blocks. *A snapshot of all
    files of a container with 1 GB of state fits in: about 50 s at 20 MB/s, so that one commit is
    skipped and processing does not block. The commits in between upload their changes and take a
    fraction of a second. Allow at least the state of a container divided by the upload speed.*"""
    commit_timeout_ms: int = setting("task.commit.timeout.ms", milliseconds(0), 1_800_000)
    """How long processing blocks beyond the max delay before the commit counts as failed. *Most
    outages of a store are shorter than half an hour, and blocking loses nothing.*"""
    commit_optional_timeout_ms: int = setting(
        "task.commit.optional.timeout.ms", milliseconds(1), 900_000
    )
    """How long a commit waits for the upload to a backend of `stores.*.backup.optional`. After
    that the commit goes on without its marker. *Half of the commit timeout, so it never fails a
    commit. A first full upload of 18 GB at 20 MB/s fits in.*"""
    is_commit_every_batch: bool = setting("task.commit.every.batch", BOOLEAN, False)
    """Commits inside each batch, before it ends. *Slower, as each batch then waits for its
    upload. Needed only for processors that are not deterministic, and for sources that cannot
    give a batch again (with `socket` it is the default).*"""
    is_skipping_failures: bool = setting(
        "task.commit.skip.commit.during.failures.enabled", BOOLEAN, False
    )
    """Goes on after a failed or timed-out commit, up to the two limits below. *You should notice
    a backup that fails; the value is Samza's.*"""
    exception_max_limit: int = setting(
        "task.commit.skip.commit.exception.max.limit", whole_number(0, what="commits"), 5
    )
    """Consecutive failed commits that are tolerated while skipping is on. *Five minutes at the
    default interval; the value is Samza's.*"""
    timeout_max_limit: int = setting(
        "task.commit.skip.commit.timeout.max.limit", whole_number(0, what="commits"), 2
    )
    """Consecutive timed-out commits that are tolerated while skipping is on. *A timeout has
    already cost half an hour; the value is Samza's.*"""
    shutdown_ms: int = setting("task.shutdown.ms", milliseconds(0), 30_000)
    """How long a stop waits for the commit in flight. *Long enough for a usual upload. Cluster
    managers kill a process that takes much longer to stop.*"""
    grouping_max_bytes: int = setting("task.grouping.max.bytes", byte_count(0), 128 * _MIB)
    """Up to this many bytes in Arrow, the worker groups the rows of one slot in a batch by itself.
    Spark sorts larger batches, and spills to disk. *Grouping in the worker saves
    a sort, and the limit bounds its memory.*"""
    replay_max_batches: int = setting(
        "task.replay.max.batches", whole_number(1, what="batches"), 80
    )
    """Batches that may be without a commit before processing blocks. *Spark keeps the offsets of
    100 batches (`spark.sql.streaming.minBatchesToRetain`); the other 20 are a margin for commits
    in flight.*"""
    divergence: DivergenceAction = setting("task.replay.on.divergence", _DIVERGENCE, "error")
    """What happens when a replayed batch gives other output or state than recorded: the query
    fails, or goes on with a warning. *A recovery must not change results that were delivered.
    Set `warn` where the difference does no harm: sums of floats depend on the order of rows.
    Other input than recorded is always an error.*"""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """The pools of a container, and the end of a sidecar."""

    commit_pool_size: int = setting(
        "job.container.commit.thread.pool.size", whole_number(1, what="threads"), 2
    )
    """Fewest threads for uploads and clean-up of one container, however few tasks it has. *With
    two, one works while the other waits for a call; the value is Samza's.*"""
    commit_pool_max_size: int = setting(
        "job.container.commit.thread.pool.max.size", whole_number(1, what="threads"), 64
    )
    """Most threads for uploads and clean-up of one container, however many tasks it has. *More
    concurrent requests gain little, and stores throttle them; the value is Samza's.*"""
    restore_pool_size: int = setting(
        "job.container.restore.thread.pool.size", whole_number(1, what="threads"), 2
    )
    """Fewest threads for restores of one container, however few tasks it has. *As for commits.*"""
    restore_pool_max_size: int = setting(
        "job.container.restore.thread.pool.max.size", whole_number(1, what="threads"), 64
    )
    """Most threads for restores of one container, however many tasks it has. *As for commits.*"""
    grace_ms: int = setting("job.container.grace.ms", milliseconds(0), 60_000)
    """How long a sidecar outlives its executor to finish uploads. *One commit interval: enough
    to finish the upload in flight, and no process stays on the host for long.*"""
    idle_ms: int = setting("job.container.idle.ms", milliseconds(0), 600_000)
    """How long a sidecar waits for the next request before it ends; 0: as long as its
    executor lives. The next request starts it again. *Ten commit intervals. A task that outlives
    its job may start a sidecar that no driver stops; this ends it.*"""

    def commit_pool_threads(self, task_count: int) -> int:
        """Return the size of the commit pool: one thread per task, within the two bounds.

        The upper bound wins over the lower one.
        """
        return min(max(task_count, self.commit_pool_size), self.commit_pool_max_size)

    def restore_pool_threads(self, task_count: int) -> int:
        """Return the size of the restore pool; otherwise as `commit_pool_threads`."""
        return min(max(task_count, self.restore_pool_size), self.restore_pool_max_size)


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How much of the past is kept."""

    retain_commits: int = setting(
        "checkpoint.retain.commits",
        whole_number(2, what="commits"),
        2,
        aliases=("spark.sql.streaming.minBatchesToRetain",),
    )
    """Newest commits that stay restorable in every backend. *If a blob of the newest commit is
    damaged, the one before it is restored.*"""
    retain_ms: int = setting("checkpoint.retain.ms", milliseconds(0), 0)
    """Age up to which commits stay restorable, besides the newest `checkpoint.retain.commits`. *Each commit
    that is kept takes up space: its files, and its part of the job log.*"""
    clean_up_ms: int = setting("checkpoint.clean.up.ms", milliseconds(0), 120_000)
    """Shortest time between two clean-ups. A clean-up deletes what only failed commits need, and
    those that are no longer retained; until then it takes up space. 0: one follows each commit.
    *A clean-up lists the blobs of each task that has changed. After each tenth commit it would
    cost a fifth of what the commits cost.*"""
    local_retain_versions: int = setting(
        "checkpoint.local.retain.versions",
        whole_number(1, what="versions"),
        2,
        aliases=("spark.sql.streaming.maxBatchesToRetainInMemory",),
    )
    """Newest local versions of a task that stay, besides those that recovery still needs. *They
    share files by hard links, so the second one costs little and saves a download.*"""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What listens to the events of a job."""

    listeners: tuple[str, ...] = setting("metrics.listeners", name_list(), (), default_text="none")
    """Listeners of the driver, or of the program in plain Python: `prometheus`, `opentelemetry`, on
    Spark `spark` (its metrics system), and dotted paths of classes of yours, which are called without
    arguments. A program can give objects, too: `writeStream.listeners(...)`,
    `sk.Container(config, listeners=[...])`. *Without listeners nothing is measured for them.*"""
    prometheus_host: str = setting("metrics.prometheus.host", TEXT, "127.0.0.1")
    """Address on which `prometheus` serves `/metrics`. *Figures name jobs and backends, and anyone
    who reaches the port can read them: only this host, unless you say otherwise.*"""
    prometheus_port: int = setting("metrics.prometheus.port", whole_number(0, 65_535), 9464)
    """Port on which `prometheus` serves `/metrics`; 0: a free one, which the log names. Jobs of one
    process share it. While it is taken, there are no metrics, and it is tried again. *The value is
    OpenTelemetry's for its exporter to Prometheus.*"""
