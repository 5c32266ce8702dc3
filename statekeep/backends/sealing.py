"""Which jobs' logs and checkpoints are sealed, by whose keys, and what of a job stays open."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.backends.encryption_keys import is_before_end_of
from statekeep.backends.optional_powers import Encryption, Encrypts
from statekeep.backends.seals import SealedCheckpointStore, SealedJobLog, Sealer
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.clock import Clock

Factories = Mapping[BackendName, StateBackendFactory]


def open_job_log(
    factories: Factories,
    backend: BackendName,
    scope: str,
    executor: BlockingExecutor,
    clock: Clock,
) -> JobLog:
    """Build the log of a scope, sealed if a backend of the job encrypts.

    Args:
        factories: All of the job, and the one that holds the log.
        backend: Holds the log.
        scope: See `statekeep.checkpoint.names`.
        executor: For blocking calls.
        clock: For retries, and for the day until which plain records are read.
    """
    log = factories[backend].job_log(scope, executor, clock)
    sealer = _sealer(factories, backend, scope, executor, clock)
    return log if sealer is None else SealedJobLog(log, sealer)


def open_checkpoint_store(
    factories: Factories,
    backend: BackendName,
    scope: str,
    executor: BlockingExecutor,
    clock: Clock,
) -> CheckpointStore:
    """Build the checkpoint store of a scope, as `open_job_log` builds the log."""
    store = factories[backend].checkpoint_store(scope, executor, clock)
    sealer = _sealer(factories, backend, scope, executor, clock)
    return store if sealer is None else SealedCheckpointStore(store, sealer)


async def outdated_markers(
    factories: Factories,
    markers: Mapping[BackendName, Mapping[StoreName, Collection[Marker]]],
    executor: BlockingExecutor,
) -> frozenset[Marker]:
    """Return the markers that `Encrypts.outdated` returns, of all backends."""
    found: set[Marker] = set()
    for backend, of_backend in markers.items():
        if backend not in factories:
            continue
        factory = factories[backend]
        if isinstance(factory, Encrypts):
            found.update(await factory.outdated(of_backend, executor))
    return frozenset(found)


def encryption_limits(factories: Iterable[StateBackendFactory], clock: Clock) -> tuple[str, ...]:
    """Return what is left open of a job that encrypts, for people: nothing if all is closed.

    Args:
        factories: Of all backends that keep state of the job.
        clock: Says whether the days until which plain state is read are over.
    """
    durable = [factory for factory in factories if factory.properties.is_durable]
    encrypting = {f.name: found for f in durable if (found := _encryption(f)) and found.is_on}
    if not encrypting:
        return ()
    limits = [
        "state is encrypted in some backends only. Anyone who can read this backend can read the state,"
        f" and anyone who can write to it can change what is restored: backend={factory.name}"
        f" encrypted={','.join(encrypting)}"
        for factory in durable
        if factory.name not in encrypting
    ]
    limits += [
        "data that is not encrypted, or of an older format, is still accepted. Anyone who can write to"
        f" the backend can replace the state: backend={name} until={found.plain_until}"
        " (take encryption.plain.until out once the job has committed)"
        for name, found in encrypting.items()
        if is_before_end_of(found.plain_until, clock)
    ]
    return tuple(limits)


def _encryption(factory: StateBackendFactory) -> Encryption | None:
    return factory.encryption() if isinstance(factory, Encrypts) else None


def _sealer(
    factories: Factories,
    backend: BackendName,
    scope: str,
    executor: BlockingExecutor,
    clock: Clock,
) -> Sealer | None:
    """Return what seals the log of a job; None where its settings name no keys.

    By the keys of the backend that holds it if that one encrypts, else of the first by name: every
    process of the job, and every tool with its settings, comes to the same.
    """
    names = sorted(factories, key=lambda name: (name != backend, name))
    found = [one for name in names if (one := _encryption(factories[name])) is not None]
    found.sort(key=lambda one: not one.is_on)
    if not found:
        return None
    return Sealer(
        [one.keys for one in found],
        scope,
        is_on=found[0].is_on,
        accepts_plain=partial(is_before_end_of, found[0].plain_until, clock),
        executor=executor,
    )
