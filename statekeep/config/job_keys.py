"""The settings of jobs, tasks, containers and checkpoints: see `statekeep.config.keys`."""

from pathlib import Path
from typing import Literal

from statekeep.config.key import Key
from statekeep.config.values import (
    BOOLEAN,
    NAME,
    PATH,
    TEXT,
    ValueType,
    byte_count,
    decimal,
    milliseconds,
    one_of,
    optional,
    whole_number,
)

DivergenceAction = Literal["warn", "error"]

RestartStrategy = Literal["none", "fixed-delay", "exponential-delay"]

_RESTART_STRATEGY: ValueType[RestartStrategy] = one_of("none", "fixed-delay", "exponential-delay")
_DIVERGENCE: ValueType[DivergenceAction] = one_of("warn", "error")
_MIB = 1 << 20

JOB_NAME: Key[str | None] = Key(
    "job.name",
    optional(NAME),
    None,
    "Names the job: the first part of every local path and remote name.",
    "Required: two jobs under one name would fence each other. On Spark the query gives it.",
    default_text="required",
)
JOB_ID = Key(
    "job.id",
    NAME,
    "1",
    "Tells instances of one job apart.",
    "Most jobs run once; the value is Samza's.",
)
LOCAL_DIR: Key[Path | None] = Key(
    "job.logged.store.base.dir",
    optional(PATH),
    None,
    "Local directory of all stores and versions.",
    "Works everywhere without set-up. Name a disk of the executor that survives its restart, "
    "so that restores cost no download.",
    default_text="`$LOGGED_STORE_BASE_DIR`, else `<temporary directory>/statekeep-<user id>`",
    variable="LOGGED_STORE_BASE_DIR",
)
LOG_BACKEND: Key[str | None] = Key(
    "job.log.backend",
    optional(TEXT),
    None,
    "Backend that holds the job log and the checkpoints.",
    "One place less to set up: a backend that keeps the state can mostly keep the log too.",
    default_text="the first listed backend that can",
)

EVENT_FLUSH_INTERVAL_MS = Key(
    "job.event.store.write.buffer.flush.interval.ms",
    milliseconds(0),
    10_000,
    "How long a progress event (bytes, times, retries) may wait before it is written.",
    "Nothing depends on these events, and each flush is one request; Flink flushes to a file "
    "system every second.",
)
EVENT_BUFFER_BYTES = Key(
    "job.event.store.write.buffer.size",
    byte_count(1024),
    _MIB,
    "Bytes of progress events that are written without waiting; as many are kept at most while "
    "the store cannot be reached.",
    "The value is Flink's.",
)

RESTART_STRATEGY: Key[RestartStrategy] = Key(
    "job.restart.strategy",
    _RESTART_STRATEGY,
    "none",
    "What a query on Spark does when it fails with an error that may pass: end, or start again "
    "behind the same handle after a delay.",
    "A query of Spark ends with its error, and most are started again by whoever runs them; two "
    "that do so multiply their attempts. The words are Flink's.",
)
RESTART_ATTEMPTS = Key(
    "job.restart.attempts",
    whole_number(1, what="restarts"),
    10,
    "Restarts in a row before the query ends with its error.",
    "With the delays below about five minutes: longer than a store takes to restart.",
)
RESTART_BACKOFF_INITIAL_MS = Key(
    "job.restart.backoff.initial.ms",
    milliseconds(0),
    1_000,
    "Delay before the first restart; with `fixed-delay` before each one.",
    "The value is Flink's.",
)
RESTART_BACKOFF_MAX_MS = Key(
    "job.restart.backoff.max.ms",
    milliseconds(0),
    60_000,
    "Longest delay of `exponential-delay`.",
    "The value is Flink's.",
)
RESTART_BACKOFF_MULTIPLIER = Key(
    "job.restart.backoff.multiplier",
    decimal(1, 100),
    2.0,
    "Factor between two delays of `exponential-delay`.",
    "Ten restarts then span minutes; Flink has 1.5, and no bound on attempts.",
)
RESTART_RESET_AFTER_MS = Key(
    "job.restart.reset.after.ms",
    milliseconds(0),
    3_600_000,
    "Time without a failure after which attempts and delays begin anew.",
    "An hour is no longer the same trouble; the value is Flink's.",
)

TASK_COUNT: Key[int | None] = Key(
    "task.count",
    optional(whole_number(1)),
    None,
    "Number of tasks of an operator on Spark; fixed for the life of the job.",
    "16, 32 and 64 tasks cost a batch the same; more let state be spread over more executors.",
    default_text="`spark.sql.shuffle.partitions` where it is set, else what the job has, else 32",
)
COMMIT_MS = Key(
    "task.commit.ms",
    milliseconds(),
    60_000,
    "Time between two commits; 0 or less: only on request.",
    "A minute of replay at most, for about 1,440 commits a day; the value is Samza's.",
)
COMMIT_MAX_DELAY_MS = Key(
    "task.commit.max.delay.ms",
    milliseconds(0),
    60_000,
    "How long processing goes on with a commit in flight before it blocks.",
    "The largest upload fits in. A usual one takes 0.2 s: 5,000 keys of 100 bytes are 0.5 MB "
    "changed, times 7.1 (universal compaction) 3.6 MB, at 20 MB/s. After a full compaction a "
    "container with 1 GB of state uploads all of it: about 50 s, so that at most one commit is "
    "skipped and processing does not block. In general: at least the state of a container divided "
    "by the upload speed.",
    aliases=("max.commit.delay",),
)
COMMIT_TIMEOUT_MS = Key(
    "task.commit.timeout.ms",
    milliseconds(0),
    1_800_000,
    "How long processing blocks beyond the max delay before the commit counts as failed.",
    "Half an hour outlasts most outages of a store; blocking loses nothing.",
)
OPTIONAL_TIMEOUT_MS = Key(
    "task.commit.optional.timeout.ms",
    milliseconds(1),
    900_000,
    "How long a commit waits for the upload to a backend of `stores.*.backup.optional`; after that "
    "the commit goes on without its marker.",
    "Half of the commit timeout: it never fails a commit, and a first full upload of 18 GB at "
    "20 MB/s fits in.",
)
COMMIT_EVERY_BATCH = Key(
    "task.commit.every.batch",
    BOOLEAN,
    False,  # noqa: FBT003 - the default of a boolean setting, beside its name
    "Commits inside each batch, before it ends.",
    "Needed only for processors that are not deterministic and for sources that cannot give a batch "
    "again (with `socket` it is the default), and slower: each batch then waits for its upload.",
)
SKIP_FAILURES = Key(
    "task.commit.skip.commit.during.failures.enabled",
    BOOLEAN,
    False,  # noqa: FBT003 - the default of a boolean setting, beside its name
    "Goes on after a failed or timed-out commit, up to the two limits below.",
    "A backup that fails should be noticed; the value is Samza's.",
)
EXCEPTION_MAX_LIMIT = Key(
    "task.commit.skip.commit.exception.max.limit",
    whole_number(0, what="commits"),
    5,
    "Consecutive failed commits that are tolerated while skipping is on.",
    "Five minutes at the default interval; the value is Samza's.",
)
TIMEOUT_MAX_LIMIT = Key(
    "task.commit.skip.commit.timeout.max.limit",
    whole_number(0, what="commits"),
    2,
    "Consecutive timed-out commits that are tolerated while skipping is on.",
    "A timeout has already cost half an hour; the value is Samza's.",
)
SHUTDOWN_MS = Key(
    "task.shutdown.ms",
    milliseconds(0),
    30_000,
    "How long a stop waits for the commit in flight.",
    "Long enough for a usual upload, short enough for cluster managers, which kill soon after.",
)
START_FROM_CHECKPOINT: Key[str | None] = Key(
    "job.start.from.checkpoint",
    optional(TEXT),
    None,
    "Id of the newest commit's checkpoint, from which the job is to go on with a fresh checkpoint "
    "location on Spark: a new query, whose batches are numbered from 0. The location of a query "
    "that did not begin from it is refused.",
    "A lost checkpoint location is an error: a new query may deliver again what the old one did.",
    default_text="none",
)
GROUPING_MAX_BYTES = Key(
    "task.grouping.max.bytes",
    byte_count(0),
    128 * _MIB,
    "Arrow bytes of one slot's rows of a batch that are grouped in the worker; above it Spark "
    "sorts them, and spills.",
    "Grouping in the task saves a sort; the bound keeps a worker's memory flat.",
)
REPLAY_MAX_BATCHES = Key(
    "task.replay.max.batches",
    whole_number(1, what="batches"),
    80,
    "Batches that may be without a commit before processing blocks.",
    "Spark keeps the offsets of 100 batches (`spark.sql.streaming.minBatchesToRetain`); the rest "
    "is margin for commits in flight.",
)
DIVERGENCE: Key[DivergenceAction] = Key(
    "task.replay.on.divergence",
    _DIVERGENCE,
    "warn",
    "What a replayed batch does whose output or changes differ from its record.",
    "Sums of floats differ harmlessly with the order of rows. A replay whose *input* differs is "
    "always an error.",
)

COMMIT_POOL_SIZE = Key(
    "job.container.commit.thread.pool.size",
    whole_number(1, what="threads"),
    2,
    "Least threads for uploads and clean-up of one container, whatever its tasks.",
    "Two overlap one call's waiting with another's work; the value is Samza's.",
)
COMMIT_POOL_MAX_SIZE = Key(
    "job.container.commit.thread.pool.max.size",
    whole_number(1, what="threads"),
    64,
    "Most threads for uploads and clean-up of one container, whatever its tasks.",
    "More concurrent requests gain little and are throttled by stores; the value is Samza's.",
)
RESTORE_POOL_SIZE = Key(
    "job.container.restore.thread.pool.size",
    whole_number(1, what="threads"),
    2,
    "Least threads for restores of one container, whatever its tasks.",
    "As for commits.",
)
RESTORE_POOL_MAX_SIZE = Key(
    "job.container.restore.thread.pool.max.size",
    whole_number(1, what="threads"),
    64,
    "Most threads for restores of one container, whatever its tasks.",
    "As for commits.",
)
GRACE_MS = Key(
    "job.container.grace.ms",
    milliseconds(0),
    60_000,
    "How long a container outlives its executor to finish uploads.",
    "One commit interval: what is in flight gets done, and nothing lingers on the host.",
)
IDLE_MS = Key(
    "job.container.idle.ms",
    milliseconds(0),
    600_000,
    "How long a container waits for the next request before it ends; 0: as long as its executor"
    " lives. The next request starts it again.",
    "Ten commit intervals: a task that outlived its job may start a container that nobody stops.",
)

RETAIN_COMMITS = Key(
    "checkpoint.retain.commits",
    whole_number(2, what="commits"),
    2,
    "Newest commits that stay restorable in every backend.",
    "The one before the newest is the way out when a blob of the newest is damaged.",
    aliases=("spark.sql.streaming.minBatchesToRetain",),
)
RETAIN_MS = Key(
    "checkpoint.retain.ms",
    milliseconds(0),
    0,
    "Age up to which commits stay restorable, beyond those that their number keeps.",
    "Each commit that is kept costs its part of the job log, and its files their place.",
)
CLEAN_UP_MS = Key(
    "checkpoint.clean.up.ms",
    milliseconds(0),
    120_000,
    "Shortest time between two clean-ups, of commits that are no longer retained and of failed ones; 0:"
    " one follows each commit. Until the next one they keep their place.",
    "A clean-up lists the blobs of each task that has changed: more often than once in ten commits it"
    " would cost a fifth of what the commits do.",
)
LOCAL_RETAIN_VERSIONS = Key(
    "checkpoint.local.retain.versions",
    whole_number(1, what="versions"),
    2,
    "Newest local versions of a task that stay, besides those that recovery still needs.",
    "They share files by hard links, so the second one costs little and saves a download.",
    aliases=("spark.sql.streaming.maxBatchesToRetainInMemory",),
)
