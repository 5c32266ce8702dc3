"""How long and how often a call to a service is repeated."""

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from statekeep.clock import Clock
from statekeep.config.blob_settings import RetrySettings
from statekeep.errors import RetriableError

T = TypeVar("T")

logger = logging.getLogger(__name__)

_REMEDY: Final = (
    " (check the location of the backend and the network; it is tried until %s is over)"
)
"""With the first warning of a call."""

_WARNING_INTERVAL_NS: Final = 10 * 10**9
"""Between two warnings of a retrier, beside the first of each call: in an outage hundreds of calls may
fail once in two seconds each."""

_LEAST_LEFT_MS: Final = 1
"""Less time than this is none: a clock's sleep may end a little early."""


@dataclass(frozen=True, slots=True)
class RetryPolicy(RetrySettings):
    """Exponential back-off with jitter, bounded in time.

    No repetition begins later than ``max_duration_ms`` after the first try has failed; the last one
    begins then. How long that try took does not count: most of it may have gone into a queue of our
    own.
    """

    settings_prefix: str = "blob.store."
    """What the names of these settings begin with, for people: ``backends.<name>.``."""
    duration_setting: str = "retry.policy.max.retry.duration.millis"
    """The setting that ``max_duration_ms`` comes from, for people."""

    def __post_init__(self) -> None:
        if self.max_retries < -1:
            msg = f"max retries is below -1: value={self.max_retries}"
            raise ValueError(msg)
        if min(self.max_duration_ms, self.backoff_delay_ms, self.backoff_max_delay_ms) < 0:
            raise ValueError(f"a retry delay is negative: policy={self}")
        if self.backoff_delay_factor < 1 or not 0 <= self.jitter_factor <= 1:
            raise ValueError(f"a retry factor is out of range: policy={self}")

    @property
    def duration_limit(self) -> str:
        """The bound in time and its setting, for people."""
        return f"{self.settings_prefix}{self.duration_setting}={self.max_duration_ms}"

    @property
    def retries_limit(self) -> str:
        """The bound of repetitions and its setting, for people."""
        return f"{self.settings_prefix}retry.policy.max.retries={self.max_retries}"

    def delay_s(self, retry: int, jitter: float) -> float:
        """Return the seconds to wait before a repetition.

        Args:
            retry: Number of the repetition, from 1.
            jitter: From -1 to 1.
        """
        longest_ms = float(self.backoff_max_delay_ms)
        try:
            delay_ms = self.backoff_delay_ms * self.backoff_delay_factor ** (retry - 1)
        except OverflowError:
            delay_ms = longest_ms
        return min(delay_ms, longest_ms) * (1 + self.jitter_factor * jitter) / 1000


class Retrier:
    """Repeats calls that raise `RetriableError`, by one policy; every other error passes through.

    The first failure of each call is a warning, and after that one failure every ten seconds: a
    start that waits for a store out of reach may wait for long, and says so. After the last try that
    error itself is raised, with notes that say how often, how long, and by which setting.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Clock,
        *,
        jitter: Callable[[], float] = lambda: random.uniform(-1, 1),  # noqa: S311  # spreads clients, hides nothing
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._jitter = jitter
        self._warned_ns = 0

    async def run(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        operation: str,
        subject: str = "",
    ) -> T:
        """Make a call until it ends otherwise than by `RetriableError` or the time is used up.

        Args:
            call: Makes one try.
            operation: What is tried, for the log.
            subject: Such as the blob, for the log.

        Raises:
            RetriableError: The last one.
        """
        tries = 0
        failing_since_ns = 0

        async def counted_call() -> T:
            nonlocal tries, failing_since_ns
            tries += 1
            try:
                return await call()
            except RetriableError:
                if tries == 1:
                    failing_since_ns = self._clock.monotonic_ns()
                raise

        policy = self._policy

        def failing_ms() -> float:
            return (self._clock.monotonic_ns() - failing_since_ns) / 1_000_000

        def left_ms() -> float:
            return max(policy.max_duration_ms - failing_ms(), 0)

        def wait(state: RetryCallState) -> float:
            # The last wait is cut to the time that is left, so that the limit is used to its end.
            delay_s = policy.delay_s(state.attempt_number, self._jitter())
            return min(delay_s, left_ms() / 1000)

        def has_no_retries_left() -> bool:
            return 0 <= policy.max_retries < tries

        def is_over(_: RetryCallState) -> bool:
            return has_no_retries_left() or left_ms() < _LEAST_LEFT_MS

        def before_sleep(state: RetryCallState) -> None:
            error = None if state.outcome is None else state.outcome.exception()
            logger.log(
                logging.WARNING if self._is_worth_a_warning(tries) else logging.DEBUG,
                "request failed, retrying: operation=%s subject=%s try=%d wait_ms=%.0f"
                " gives_up_in_ms=%.0f error=%s%s",
                operation,
                subject,
                tries,
                state.upcoming_sleep * 1000,
                left_ms(),
                error,
                _REMEDY % policy.duration_limit if tries == 1 else "",
            )

        retrying = AsyncRetrying(
            sleep=self._clock.sleep,
            stop=is_over,
            wait=wait,
            retry=retry_if_exception_type(RetriableError),
            before_sleep=before_sleep,
            reraise=True,
        )
        try:
            return await retrying(counted_call)
        except RetriableError as exc:
            exc.add_note(f"gave up: tries={tries} failing_ms={failing_ms():.0f}")
            limit = policy.retries_limit if has_no_retries_left() else policy.duration_limit
            exc.add_note(f"hint: the limit that ran out is {limit}")
            raise

    def _is_worth_a_warning(self, tries: int) -> bool:
        now_ns = self._clock.monotonic_ns()
        if tries > 1 and now_ns < self._warned_ns + _WARNING_INTERVAL_NS:
            return False
        self._warned_ns = now_ns
        return True
