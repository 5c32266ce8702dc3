"""Counting what is asked of Kafka's client."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from confluent_kafka import KafkaException

from statekeep.backends.kafka.client_errors import explained
from statekeep.backends.storage.requests import outcome_of
from statekeep.clock import Clock, SystemClock
from statekeep.events import Report, RequestDone
from statekeep.reporter import current_activity

P = ParamSpec("P")
T = TypeVar("T")


class ClientCalls:
    """Reports the calls to Kafka's client of one backend as requests. Used by any thread.

    The client bundles and repeats its requests to the cluster by itself and does not say which of them
    belong to a call. So a request here is a call, from its beginning to its answer.

    Attributes:
        report: Gets each call; None: nothing asks for them.
    """

    def __init__(self, backend: str, clock: Clock) -> None:
        """Take what each call is reported with."""
        self.report: Report | None = None
        self._backend = backend
        self._clock = clock

    @contextmanager
    def counted(self, operation: str) -> Generator[None]:
        """Report the block as one call, which fails with what the block raises."""
        began_ns = self._clock.monotonic_ns()
        try:
            yield
        except BaseException as exc:
            self.ended(operation, began_ns, exc)
            raise
        self.ended(operation, began_ns)

    def begin(self) -> int:
        """Return what `ended` needs, where it is not known yet whether there is a call to report."""
        return self._clock.monotonic_ns()

    def ended(self, operation: str, began_ns: int, error: BaseException | None = None) -> None:
        """Report a call that has ended."""
        if self.report is None:
            return
        doing = current_activity()
        self.report(
            RequestDone(
                backend=self._backend,
                operation=operation,
                outcome="done" if error is None else _outcome_of(error),
                ended_ns=self._clock.time_ns(),
                elapsed_ns=self._clock.monotonic_ns() - began_ns,
                purpose=doing.purpose,
                task=doing.task,
            )
        )


def _outcome_of(error: BaseException) -> str:
    """Return how a call has ended, also where the error is the library's own still."""
    return outcome_of(explained(error.args[0], "") if isinstance(error, KafkaException) else error)


NOT_COUNTED: Final = ClientCalls("", SystemClock())
"""For clients that no job has made; nothing ever sets its ``report``."""


class Counting(Protocol):
    """Has what its calls are reported by."""

    calls: ClientCalls


C = TypeVar("C", bound=Counting)


def asks(
    operation: str,
) -> Callable[[Callable[Concatenate[C, P], T]], Callable[Concatenate[C, P], T]]:
    """Have each call of a method reported as one call to the client."""

    def wrap(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
        @wraps(method)
        def counted(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
            with self.calls.counted(operation):
                return method(self, *args, **kwargs)

        return counted

    return wrap
