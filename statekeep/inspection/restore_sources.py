"""Which stores a restore beside the job gives, and from where."""

from collections.abc import Mapping
from dataclasses import replace

from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, StoreName
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import ConfigError
from statekeep.stores.version import SealedVersion


def only_from(
    backend: BackendName, checkpoint: CheckpointV2, settings: Mapping[StoreName, StoreSettings]
) -> Mapping[StoreName, StoreSettings]:
    """Return the settings of a restore from one backend alone.

    A store that only others hold, or that is not backed up, begins empty in them: it is left out.
    One that no backend holds, though the settings say that one does, has this backend: it is missing,
    and the restore has to say so.
    """
    own = checkpoint.markers_of(backend)
    held = {store for markers in checkpoint.state_markers.values() for store in markers}
    return {
        store: replace(
            found,
            restore_factories=(backend,) if is_asked else (),
            is_begun_empty=not is_asked,
        )
        for store, found in settings.items()
        for is_asked in [store in own or (store not in held and bool(found.restore_factories))]
    }


def require_sources(checkpoint: CheckpointV2, settings: Mapping[StoreName, StoreSettings]) -> None:
    """Make sure that each store which is backed up has a backend to come from.

    One without means that the settings are not those of the job.

    Raises:
        ConfigError: A store has none.
    """
    for store, found in settings.items():
        holders = [name for name, markers in checkpoint.state_markers.items() if store in markers]
        if holders and not set(holders).intersection(found.restore_factories):
            raise ConfigError(
                "the settings name no backend that has the state of the store: "
                f"store={store} settings={','.join(found.restore_factories)} "
                f"backends={','.join(sorted(holders))}",
                key=f"stores.{store}.restore.factories",
                hint="give the settings of the job with --config or --set",
            )


def require_every_store(
    version: SealedVersion, checkpoint: CheckpointV2, settings: Mapping[StoreName, StoreSettings]
) -> None:
    """Make sure that a version which is in the directory already has every store asked for.

    An earlier restore, from one backend alone, may have left some out: the name is the same.

    Raises:
        ConfigError: It lacks some.
    """
    asked = {
        store
        for backend, markers in checkpoint.state_markers.items()
        for store in markers
        if store in settings and backend in settings[store].restore_factories
    }
    missing = version.lacks(sorted(asked))
    if missing:
        raise ConfigError(
            "the directory has this version already, without some of its stores: "
            f"directory={version.directory} stores={','.join(missing)}",
            hint="restore to another directory, or delete this one",
        )
