"""What one container shares for a backend in an object store: a client and the bounds on its use."""

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.object_manager import ObjectBlobStoreManager
from statekeep.backends.blob.managers.object_places import ObjectPlace
from statekeep.backends.blob.managers.object_requests import Requests, SharedLimits
from statekeep.backends.blob.managers.shared_client import SharedClient
from statekeep.backends.blob.object_probe import ObjectProbe
from statekeep.backends.blob.settings import BlobSettings
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.pacing import ByteBudget, Throttle, TokenBucket
from statekeep.backends.retry import Retrier
from statekeep.backends.wrappers import InFlightLimit
from statekeep.clock import Clock


class ObjectStore:
    """Builds the managers of one backend; they share a client, bounds and rests."""

    def __init__(self, place: ObjectPlace, settings: BlobSettings, buffers: ByteBudget) -> None:
        self._settings = settings
        self._place = place
        self._buffers = buffers
        make_client = place.client_factory(settings.s3, settings.azure, settings.max_in_flight)
        self._client = SharedClient(make_client)
        self._shared: SharedLimits | None = None

    def manager(
        self, executor: BlockingExecutor, clock: Clock, retrier: Retrier, calls: InFlightLimit
    ) -> BlobStoreManager:
        """Build one task's manager.

        Args:
            executor: For every request.
            clock: The container's.
            retrier: Repeats every request that may be repeated.
            calls: The container's places.
        """
        return ObjectBlobStoreManager(
            self._client,
            self._settings.shown_root,
            self._requests(executor, clock, retrier, calls),
            part_bytes=self._settings.transfer.part_bytes,
            uncommitted_tags=self._settings.transfer.uncommitted_tags,
        )

    def probe(
        self, executor: BlockingExecutor, clock: Clock, retrier: Retrier, calls: InFlightLimit
    ) -> ObjectProbe:
        """Build what tries the store at a start; see `manager`."""
        s3, azure = self._settings.s3, self._settings.azure
        return ObjectProbe(
            self._client,
            self._requests(executor, clock, retrier, calls),
            plainer=self._place.plainer_client_factories(s3, azure),
            uncommitted_tags=self._settings.transfer.uncommitted_tags,
        )

    def _requests(
        self, executor: BlockingExecutor, clock: Clock, retrier: Retrier, calls: InFlightLimit
    ) -> Requests:
        transfer = self._settings.transfer
        if self._shared is None:
            rate = transfer.bandwidth_bytes_per_second
            self._shared = SharedLimits(
                calls=calls,
                buffers=self._buffers,
                throttle=Throttle(clock),
                bandwidth=TokenBucket(rate, clock) if rate is not None else None,
            )
        own_calls = InFlightLimit(transfer.task_max_in_flight)
        return Requests(executor, retrier, self._shared, own_calls)
