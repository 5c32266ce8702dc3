"""The typed settings of a job, frozen once checked.

Names, types and defaults come from `statekeep.config.keys`; `statekeep.config.load` builds a
`Config` from what somebody wrote.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from typing_extensions import override

from statekeep.config import backend_keys, job_keys, resolve, store_keys
from statekeep.config.explain import ExplainedSetting, explain
from statekeep.config.job_keys import DivergenceAction, RestartStrategy
from statekeep.config.key import Key
from statekeep.config.local_dir import default_local_dir
from statekeep.config.settings import Setting, WrittenValue, check_setting, collect, overlay
from statekeep.config.store_keys import (
    CompactionStyle,
    Compression,
    StoreFactoryName,
)
from statekeep.errors import ConfigError

T = TypeVar("T")

KEY: Final = "key"
"""Where the metadata of a field holds its `Key`."""


def _setting(key: Key[T]) -> T:
    """Declare a field that ``key`` fills, with the default of the key."""
    return field(default=key.default, metadata={KEY: key})


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What identifies a job, and where its state and its log live."""

    name: str
    """First part of every local path and remote name. Required: two jobs under one name would
    fence each other."""
    id: str = _setting(job_keys.JOB_ID)
    """Tells instances of one job apart; most jobs run once."""
    local_dir: Path = field(default_factory=default_local_dir, metadata={KEY: job_keys.LOCAL_DIR})
    """Directory of all stores and versions; the default needs no set-up, but a restart of the
    machine may empty it."""
    log_backend: str | None = _setting(job_keys.LOG_BACKEND)
    """Backend that holds the job log and the checkpoints; None: the first listed one that can."""
    start_from_checkpoint: str | None = _setting(job_keys.START_FROM_CHECKPOINT)
    """Id of the checkpoint that a new query goes on from; None, as a lost checkpoint location is
    an error."""
    event_flush_interval_ms: int = _setting(job_keys.EVENT_FLUSH_INTERVAL_MS)
    """Milliseconds that a progress event may wait: each flush is one request."""
    event_buffer_bytes: int = _setting(job_keys.EVENT_BUFFER_BYTES)
    """Bytes of progress events that do not wait, and the most that are kept."""

    @property
    def instance_name(self) -> str:
        """The name under which a job in plain Python keeps its state: instances share none."""
        return self.name if self.id == "1" else f"{self.name}-{self.id}"


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Whether and when a failed query starts again."""

    strategy: RestartStrategy = _setting(job_keys.RESTART_STRATEGY)  # noqa: RUF009 - declares a field
    """None, because queries of Spark end with their error."""
    attempts: int = _setting(job_keys.RESTART_ATTEMPTS)
    """Restarts in a row: about five minutes of them."""
    backoff_initial_ms: int = _setting(job_keys.RESTART_BACKOFF_INITIAL_MS)
    """Milliseconds before the first one, as Flink waits."""
    backoff_max_ms: int = _setting(job_keys.RESTART_BACKOFF_MAX_MS)
    """Milliseconds before any, at most, as Flink waits."""
    backoff_multiplier: float = _setting(job_keys.RESTART_BACKOFF_MULTIPLIER)
    """Between two delays: doubling."""
    reset_after_ms: int = _setting(job_keys.RESTART_RESET_AFTER_MS)
    """Milliseconds without a failure after which all begins anew: no longer the same trouble."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How tasks commit, and how they read and replay their input."""

    count: int | None = _setting(job_keys.TASK_COUNT)
    """Tasks of an operator on Spark; None: ``spark.sql.shuffle.partitions`` where the user has set
    it, else as many as the job has, and 32 for a new one."""
    commit_ms: int = _setting(job_keys.COMMIT_MS)
    """Milliseconds between commits, 0 or less: only on request. A minute of replay at most."""
    commit_max_delay_ms: int = _setting(job_keys.COMMIT_MAX_DELAY_MS)
    """Milliseconds that processing goes on with a commit in flight: long enough for the large
    upload that follows a compaction."""
    commit_timeout_ms: int = _setting(job_keys.COMMIT_TIMEOUT_MS)
    """Milliseconds that processing then blocks before the commit fails: outlasts most outages."""
    commit_optional_timeout_ms: int = _setting(job_keys.OPTIONAL_TIMEOUT_MS)
    """Milliseconds that a commit waits for an optional backend's upload: half of the timeout."""
    is_commit_every_batch: bool = _setting(job_keys.COMMIT_EVERY_BATCH)
    """Commits inside each batch; off, because only processors that are not deterministic need it."""
    is_skipping_failures: bool = _setting(job_keys.SKIP_FAILURES)
    """Goes on after failed commits, up to the limits; off, so that a failing backup is noticed."""
    exception_max_limit: int = _setting(job_keys.EXCEPTION_MAX_LIMIT)
    """Consecutive failed commits that are tolerated while skipping: five intervals."""
    timeout_max_limit: int = _setting(job_keys.TIMEOUT_MAX_LIMIT)
    """Consecutive timed-out commits that are tolerated while skipping: each costs half an hour."""
    shutdown_ms: int = _setting(job_keys.SHUTDOWN_MS)
    """Milliseconds that a stop waits for the commit in flight: cluster managers kill soon after."""
    grouping_max_bytes: int = _setting(job_keys.GROUPING_MAX_BYTES)
    """Arrow bytes of one task's rows that are grouped in the task, above it Spark sorts: bounds
    the worker's memory."""
    replay_max_batches: int = _setting(job_keys.REPLAY_MAX_BATCHES)
    """Batches without a commit before processing blocks: below the 100 that Spark keeps."""
    divergence: DivergenceAction = _setting(job_keys.DIVERGENCE)  # noqa: RUF009 - declares a field
    """What a replay does whose output or changes differ: sums of floats differ harmlessly."""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """The pools of a container and its end."""

    commit_pool_size: int = _setting(job_keys.COMMIT_POOL_SIZE)
    """Least threads for uploads; two overlap waiting with work."""
    commit_pool_max_size: int = _setting(job_keys.COMMIT_POOL_MAX_SIZE)
    """Most threads for uploads; more are throttled by stores."""
    restore_pool_size: int = _setting(job_keys.RESTORE_POOL_SIZE)
    """Least threads for restores, as for commits."""
    restore_pool_max_size: int = _setting(job_keys.RESTORE_POOL_MAX_SIZE)
    """Most threads for restores, as for commits."""
    grace_ms: int = _setting(job_keys.GRACE_MS)
    """Milliseconds that a container outlives its executor to finish uploads: one interval."""
    idle_ms: int = _setting(job_keys.IDLE_MS)
    """Milliseconds without a request after which a container ends; 0: never."""

    def commit_pool_threads(self, task_count: int) -> int:
        """Return the size of the commit pool: one thread per task, within the two bounds.

        The upper bound wins over the lower one.
        """
        return min(max(task_count, self.commit_pool_size), self.commit_pool_max_size)

    def restore_pool_threads(self, task_count: int) -> int:
        """Return the size of the restore pool: one thread per task, within the two bounds.

        The upper bound wins over the lower one.
        """
        return min(max(task_count, self.restore_pool_size), self.restore_pool_max_size)


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How much of the past is kept."""

    retain_commits: int = _setting(job_keys.RETAIN_COMMITS)
    """Newest commits that stay restorable, at least 2: the older one is the way out when a blob
    of the newest is damaged."""
    retain_ms: int = _setting(job_keys.RETAIN_MS)
    """Milliseconds for which every commit stays restorable, whatever their number; 0: none does."""
    clean_up_ms: int = _setting(job_keys.CLEAN_UP_MS)
    """Milliseconds that pass at least between two clean-ups; 0: one follows each commit."""
    local_retain_versions: int = _setting(job_keys.LOCAL_RETAIN_VERSIONS)
    """Newest local versions of a task that stay besides those that recovery needs; they share
    files."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """One store, its backends and its engine."""

    name: str
    """The name in ``stores.<name>.*``."""
    factory: StoreFactoryName = _setting(store_keys.STORE_FACTORY)  # noqa: RUF009 - declares a field
    """Engine; on disk, so that state larger than memory works."""
    backup_factories: tuple[str, ...] = _setting(store_keys.BACKUP_FACTORIES)
    """Backends that each commit goes to; none, because no data leaves the machine unasked."""
    restore_factories: tuple[str, ...] = _setting(store_keys.RESTORE_FACTORIES)
    """Backends that a restore tries, in this order; from `Config.store` the default is
    ``backup_factories``."""
    is_begun_empty: bool = False
    """Whether the list of restore backends was given, as empty: what backends hold is given up."""
    optional_factories: tuple[str, ...] = _setting(store_keys.OPTIONAL_FACTORIES)
    """Backup backends whose failure does not fail the commit; none, so that checkpoints are
    complete."""
    is_cleaned_on_start: bool = _setting(store_keys.CLEAN_ON_START)
    """Drops the local version at container start; off, because a version is proven before use."""
    changelog: str | None = _setting(store_keys.CHANGELOG)
    """Changelog topic; no default, because a topic belongs to one store."""
    changelog_min_compaction_lag_ms: int = _setting(store_keys.CHANGELOG_MIN_COMPACTION_LAG_MS)
    """Milliseconds that the broker leaves records uncompacted: longer than any commit in flight."""
    changelog_delete_retention_ms: int = _setting(store_keys.CHANGELOG_DELETE_RETENTION_MS)
    """Milliseconds that the broker keeps tombstones: longer than any restore."""
    changelog_replication_factor: int | None = _setting(store_keys.CHANGELOG_REPLICATION_FACTOR)
    """Replicas of the changelog; None: as other topics of the cluster."""
    write_buffer_bytes: int = _setting(store_keys.WRITE_BUFFER_BYTES)
    """Memory that collects writes: eight open stores stay near 200 MB, caches included."""
    block_cache_bytes: int = _setting(store_keys.BLOCK_CACHE_BYTES)
    """Memory that caches reads; the operating system caches the files as well."""
    compaction_style: CompactionStyle = _setting(store_keys.COMPACTION_STYLE)  # noqa: RUF009 - declares a field
    """How files are merged: the default uploads a third of what the other one does."""
    bloom_bits: int = _setting(store_keys.BLOOM_BITS)
    """Bits per key of the filter for absent keys, 0: none; one false alarm in a hundred."""
    compression: Compression = _setting(store_keys.COMPRESSION)  # noqa: RUF009 - declares a field
    """Of files and so of uploads: cheap enough never to be waited for."""

    @property
    def is_durable(self) -> bool:
        """Whether the store is backed up at all."""
        return bool(self.backup_factories)

    @property
    def required_factories(self) -> tuple[str, ...]:
        """The backup backends without which a commit is not complete."""
        return tuple(name for name in self.backup_factories if name not in self.optional_factories)


_Section = TypeVar(
    "_Section",
    JobSettings,
    RestartSettings,
    TaskSettings,
    ContainerSettings,
    CheckpointSettings,
    StoreSettings,
)


@dataclass(frozen=True, slots=True, repr=False)
class Config:
    """The settings of one job. Each one is checked alone when a `Config` is built.

    What only several settings together show is checked where it is asked for, and by `check`.
    """

    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    """What was given, by name. Nobody changes it."""

    @override
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={s.shown!r}" for name, s in sorted(self.settings.items()))
        return f"Config({shown})"

    @property
    def job(self) -> JobSettings:
        """The job's identity and places.

        Raises:
            ConfigError: The job has no name.
        """
        name = self._value(job_keys.JOB_NAME)
        if name is None:
            raise ConfigError(
                "setting is required: key=job.name",
                key="job.name",
                hint="give the job a name of its own; on Spark the name of the query",
            )
        return JobSettings(name=name, **self._given(JobSettings))

    @property
    def restart(self) -> RestartSettings:
        """Whether and when a failed query starts again."""
        return RestartSettings(**self._given(RestartSettings))

    @property
    def task(self) -> TaskSettings:
        """How tasks commit and replay."""
        return TaskSettings(**self._given(TaskSettings))

    @property
    def container(self) -> ContainerSettings:
        """The pools of a container."""
        return ContainerSettings(**self._given(ContainerSettings))

    @property
    def checkpoint(self) -> CheckpointSettings:
        """How much of the past is kept."""
        return CheckpointSettings(**self._given(CheckpointSettings))

    def store(self, name: str) -> StoreSettings:
        """Return the settings of a store, also of one that no setting names.

        A list of the store itself goes before the job's, and that before the default; an empty
        list means none.

        Raises:
            ConfigError: Its lists of backends contradict each other.
        """
        lists: dict[str, Any] = {
            "is_begun_empty": resolve.is_begun_empty(self.settings, name),
            "backup_factories": resolve.backup_factories(self.settings, name),
            "restore_factories": resolve.restore_factories(self.settings, name),
            "optional_factories": resolve.optional_factories(self.settings, name),
        }
        return StoreSettings(name=name, **(self._given(StoreSettings, name) | lists))

    @property
    def store_names(self) -> tuple[str, ...]:
        """The stores that have a setting of their own, sorted; there may be others."""
        return resolve.store_names(self.settings)

    def backend_names(self) -> tuple[str, ...]:
        """Return every backend that some store lists, the job's own list first.

        The backend of ``job.log.backend`` is among them only if a store lists it too.
        """
        return resolve.all_backup_factories(self.settings)

    def optional_backend_names(self) -> tuple[str, ...]:
        """Return every backend that some store lists as optional; another store may require it.

        Raises:
            ConfigError: A store's lists of backends contradict each other.
        """
        return resolve.all_optional_factories(self.settings)

    def backend_factory(self, name: str) -> str:
        """Return the short name or dotted path of the factory behind a backend's name."""
        found = self.settings.get(backend_keys.BACKEND_FACTORY.of(name))
        return name if found is None else found.value

    def backend_settings(self, name: str, defaults_prefix: str) -> dict[str, str]:
        """Return the section of one backend, as its factory takes it.

        Args:
            name: The backend; its keys are ``backends.<name>.*``.
            defaults_prefix: Such as ``blob.store``: the keys that hold for all backends of the
                kind and give way to the backend's own; empty if there are none.

        Returns:
            What was given, by name without prefix, without ``factory``. Values of settings that
            are defined under ``defaults_prefix`` are in their plain form: milliseconds, bytes.

        Raises:
            ConfigError: A value is not of the type that ``defaults_prefix`` defines for it.
        """
        return resolve.backend_section(self.settings, name, defaults_prefix)

    def with_defaults(
        self, values: Mapping[str, WrittenValue], source: str = "runtime default"
    ) -> "Config":
        """Return a configuration that uses ``values`` only where nothing else says something.

        They are the weakest of all: a store's changelog still makes ``kafka`` its backend.

        Raises:
            ConfigError: A name is unknown or a value is not of its type.
        """
        defaults = collect(
            check_setting(name, value, source, is_default=True) for name, value in values.items()
        )
        return Config(overlay(defaults, self.settings))

    def check(self) -> None:
        """Check what only several settings together show; for the start of a job.

        Raises:
            ConfigError: The job has no name, a store's lists of backends contradict each other, or a
                section of settings belongs to no backend in use.
        """
        used = {*self.backend_names(), *filter(None, [self.job.log_backend])}
        for name in self.store_names:
            self.store(name)
        for setting in self.settings.values():
            section = setting.name.removeprefix("backends.")
            if section != setting.name and not any(section.startswith(f"{n}.") for n in used):
                raise ConfigError(
                    f"no store lists the backend of this setting: key={setting.name} "
                    f"backends={','.join(sorted(used))} source={setting.source}",
                    key=setting.name,
                )

    def as_dict(self) -> dict[str, str]:
        """Return what was given, secrets included, to build an equal configuration elsewhere.

        Defaults of the runtime are in it as if somebody had given them.
        """
        values = {name: setting.value for name, setting in self.settings.items()}
        for store in self.store_names:
            key = store_keys.BACKUP_FACTORIES.of(store)
            if key not in values and store_keys.CHANGELOG.of(store) in values:
                values[key] = ",".join(resolve.backup_factories(self.settings, store))
        return values

    def explain(self) -> list[ExplainedSetting]:
        """Return every effective setting and where it comes from, sorted by key, secrets hidden."""
        return explain(self.settings)

    def _value(self, key: Key[T]) -> T:
        found = self.settings.get(key.name)
        return key.default if found is None else found.parse_key(key)

    def _given(self, section: type[_Section], store: str = "") -> dict[str, Any]:
        """Return the given values of a section by field; Any, since each field has its type."""
        given: dict[str, Any] = {}
        for declared in fields(section):
            if KEY in declared.metadata:
                key = declared.metadata[KEY]
                found = resolve.find(self.settings, key, store)
                if found is not None:
                    given[declared.name] = found.parse_key(key)
        return given
