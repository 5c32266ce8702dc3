"""Which backends may give a store its state back, in which order."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
)
from statekeep.config.store_settings import StoreSettings

BadMarkers = Collection[tuple[str, str, str, str]]
"""(backend, task, store, marker) that must not be used again, as `LogView.bad_markers` has them."""


@dataclass(frozen=True, slots=True)
class Source:
    """A backend that holds a store's state at the checkpoint."""

    backend: BackendName
    marker: Marker


@dataclass(frozen=True, slots=True)
class StorePlan:
    """What to do about one store."""

    is_new: bool
    """Nothing was ever backed up for it: it begins empty."""
    sources: tuple[Source, ...] = ()
    """Where its state is, in the order in which to try. Empty for a store that is not new: this
    checkpoint cannot restore it."""
    elsewhere: tuple[BackendName, ...] = ()
    """Backends that have it, and that the settings do not restore from; only without sources."""
    is_held: bool = False
    """Whether any backend has, or had, a marker for it."""

    @property
    def is_stranded(self) -> bool:
        """Whether the checkpoint cannot restore the store."""
        return not self.is_new and not self.sources


def plan_restore(
    task_name: TaskName,
    stores: Mapping[StoreName, StoreSettings],
    checkpoint: CheckpointV2 | None,
    *,
    listed: Collection[StoreName] | None = None,
    bad_markers: BadMarkers = (),
) -> Mapping[StoreName, StorePlan]:
    """Plan the restore of a task's stores at one checkpoint.

    - No checkpoint: every store is new.
    - Else the backends of the store's ``restore.factories`` that have a marker for it, in
      that order, without those whose marker is known to be bad. A store that is listed and has
      none left is *not* empty: its plan has no source, and the caller goes to an older commit, or
      refuses where no backend ever held the store: an older commit would not help.
    - A store without ``restore.factories`` is new if no backend has a marker for it, or if the
      settings say in so many words that it begins empty. Else its plan has no source: settings from
      which a list has been lost must not begin empty what is backed up.

    Args:
        task_name: The task, as the bad markers name it.
        stores: The task's stores as configured now. A store that only the checkpoint knows was
            removed from the job, and is left alone.
        checkpoint: What the commit record holds for the task.
        listed: The stores that the commit record lists; None: those that any backend has a marker
            for.
        bad_markers: Markers that failed their checks before.

    Source: Samza 1.8 ``ContainerStorageManagerUtil``. Different on purpose: Samza takes the first
    backend of the list where none has a marker, and so may start a listed store empty.
    """
    if checkpoint is None:
        return dict.fromkeys(stores, StorePlan(is_new=True))
    held = _stores_with_markers(checkpoint)
    known = held if listed is None else frozenset(listed)
    usable = _usable_markers(task_name, checkpoint, bad_markers)
    return {
        name: StorePlan(is_new=True)
        if name not in known or _begins_empty(settings, is_held=name in held)
        else _plan_store(settings, usable.get(name, {}), is_held=name in held)
        for name, settings in stores.items()
    }


def _begins_empty(settings: StoreSettings, *, is_held: bool) -> bool:
    return not settings.restore_factories and (settings.is_begun_empty or not is_held)


def _plan_store(
    settings: StoreSettings, markers: Mapping[BackendName, Marker], *, is_held: bool
) -> StorePlan:
    backends = [name for name in map(BackendName, settings.restore_factories) if name in markers]
    sources = tuple(Source(b, markers[b]) for b in backends)
    elsewhere = () if sources else tuple(markers)
    return StorePlan(is_new=False, sources=sources, elsewhere=elsewhere, is_held=is_held)


def _usable_markers(
    task_name: TaskName, checkpoint: CheckpointV2, bad_markers: BadMarkers
) -> Mapping[StoreName, Mapping[BackendName, Marker]]:
    """Return ``{store: {backend: marker}}`` without the markers known to be bad."""
    usable: dict[StoreName, dict[BackendName, Marker]] = {}
    for backend, markers in checkpoint.state_markers.items():
        for store, marker in markers.items():
            if (backend, task_name, store, marker) not in bad_markers:
                usable.setdefault(store, {})[backend] = marker
    return usable


def _stores_with_markers(checkpoint: CheckpointV2) -> frozenset[StoreName]:
    return frozenset(name for markers in checkpoint.state_markers.values() for name in markers)
