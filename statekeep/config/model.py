"""The settings of a job, frozen once checked.

The dataclasses of `statekeep.config.keys` declare them; `statekeep.config.load` builds a `Config`
from what the user wrote.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from statekeep.config import resolve
from statekeep.config.blob_settings import NamedBackend
from statekeep.config.explain import ExplainedSetting, explain
from statekeep.config.job_settings import (
    CheckpointSettings,
    ContainerSettings,
    JobSettings,
    MetricsSettings,
    RestartSettings,
    TaskSettings,
)
from statekeep.config.key import VARIABLE_HOLE, keys_of
from statekeep.config.lookup import WrittenValue, check_setting
from statekeep.config.settings import Setting, collect, overlay
from statekeep.config.store_settings import StateVariableSettings, StoreSettings
from statekeep.errors import ConfigError

_BACKEND_FACTORY: Final = keys_of(NamedBackend)["factory"]
_VARIABLE_STORE: Final = keys_of(StateVariableSettings)["store"]


@dataclass(frozen=True, slots=True, repr=False)
class Config:
    """The settings of one job. Each one is checked alone when a `Config` is built.

    What only several settings together show is checked where it is asked for, and by `check`.
    """

    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    """What was given, by name. Never changed."""

    @override
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={s.shown!r}" for name, s in sorted(self.settings.items()))
        return f"Config({shown})"

    @property
    def job(self) -> JobSettings:
        """The job's identity and directories.

        Raises:
            ConfigError: The job has no name.
        """
        given = self._given(JobSettings)
        if "name" not in given:
            raise ConfigError(
                "setting is required: key=job.name",
                key="job.name",
                hint="give the job a name of its own; on Spark the name of the query",
            )
        return JobSettings(**given)

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

    @property
    def metrics(self) -> MetricsSettings:
        """What listens to the events of the job."""
        return MetricsSettings(**self._given(MetricsSettings))

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

    @property
    def variable_stores(self) -> Mapping[str, str]:
        """``{state variable: store}`` as settings say, by name of the variable.

        A name may begin with that of an operator.
        """
        before, after = _VARIABLE_STORE.name.split(VARIABLE_HOLE)
        return {
            name.removeprefix(before).removesuffix(after): setting.parse_key(_VARIABLE_STORE)
            for name, setting in sorted(self.settings.items())
            if name.startswith(before) and name.endswith(after)
        }

    def backend_names(self, first: str = "") -> tuple[str, ...]:
        """Return every backend that some store lists: the job's own list, that of ``first``, the rest.

        The backend of ``job.log.backend`` is among them only if a store lists it too.
        """
        return resolve.all_backup_factories(self.settings, first)

    def optional_backend_names(self) -> tuple[str, ...]:
        """Return every backend that some store lists as optional; another store may require it.

        Raises:
            ConfigError: A store's lists of backends contradict each other.
        """
        return resolve.all_optional_factories(self.settings)

    def backend_factory(self, name: str) -> str:
        """Return the short name or dotted path of the factory behind a backend's name."""
        found = self.settings.get(_BACKEND_FACTORY.of(name))
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

        Defaults of the runtime are in it as if the user had given them.
        """
        values = {name: setting.value for name, setting in self.settings.items()}
        for store in self.store_names:
            key = resolve.BACKUP_FACTORIES.of(store)
            if key not in values and resolve.CHANGELOG.of(store) in values:
                values[key] = ",".join(resolve.backup_factories(self.settings, store))
        return values

    def explain(self) -> list[ExplainedSetting]:
        """Return every effective setting and where it comes from, sorted by key, secrets hidden."""
        return explain(self.settings)

    def _given(self, section: type, store: str = "") -> dict[str, Any]:
        """Return the given values of a section by field; Any, since each field has its type."""
        found = {
            name: (key, resolve.find(self.settings, key, store))
            for name, key in keys_of(section).items()
        }
        return {
            name: given.parse_key(key) for name, (key, given) in found.items() if given is not None
        }
