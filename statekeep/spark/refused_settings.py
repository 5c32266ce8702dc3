"""Settings that the Spark runtime cannot follow: refused by name instead of having no effect."""

from collections.abc import Mapping
from typing import Final

from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark.tasks import STATE_STORE

_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "job.id": ("1", "on Spark instances of a job are told apart by job.name alone"),
}
"""``{key: (the one value that does nothing, why any other is refused)}``"""


def check_settings(config: Config) -> None:
    """Check what the Spark runtime needs of the settings beyond each one's own type.

    Raises:
        ConfigError: One of them cannot be followed; names it and says why.
    """
    config.check()
    _check_local_dir(config)
    for key, (harmless, reason) in _REFUSED.items():
        given = config.settings.get(key)
        if given is not None and given.value.replace(" ", "") != harmless:
            raise ConfigError(
                f"setting is not possible on Spark: {key}={given.shown} ({reason}) "
                f"source={given.source}",
                key=key,
                hint="leave it out",
            )
    unknown = [store for store in config.store_names if store != STATE_STORE]
    if unknown:
        raise ConfigError(
            f"unknown store: store={unknown[0]} stores={STATE_STORE}",
            key=f"stores.{unknown[0]}",
            hint=f"state variables of a processor are kept in the store {STATE_STORE!r}",
        )


def _check_local_dir(config: Config) -> None:
    if not config.job.local_dir.is_absolute():
        raise ConfigError(
            f"the local directory must be absolute: path={config.job.local_dir}",
            key="job.logged.store.base.dir",
            hint="executors and containers have working directories of their own",
        )
