"""Whether a failed query starts again, and when.

Source: Flink 1.20 restart strategies ``fixed-delay`` and ``exponential-delay``. Different on purpose:
attempts are bounded in both, and errors that a restart cannot cure end the query at once.
"""

from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import (
    AnalysisException,
    ParseException,
    PythonException,
    StreamingQueryException,
)

from statekeep.clock import Clock
from statekeep.config.job_settings import RestartSettings
from statekeep.errors import (
    BackendClosedError,
    CheckpointCorruptError,
    CheckpointLocationError,
    ConfigError,
    ReplayDivergedError,
    StateSchemaError,
    TaskFencedError,
)

_NS_PER_MS: Final = 1_000_000

_LASTING: Final = (
    # Ours: another owner, or something that a person has to mend.
    TaskFencedError,
    ConfigError,
    CheckpointLocationError,
    CheckpointCorruptError,
    ReplayDivergedError,
    StateSchemaError,
    BackendClosedError,
    # Spark has tried a task several times before it reports what a Python worker raised.
    PythonException,
    AnalysisException,
    ParseException,
    # What a sink raises by a mistake in the program, and raises again.
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
)
_OF_A_WORKER: Final = "org.apache.spark.api.python.PythonException"
_DOUBLE_WRITE: Final = (
    "Concurrent update to the log. Multiple streaming jobs detected for",
    "Multiple streaming queries are concurrently using",
    "[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY]",
)
"""In Spark's error ``CONCURRENT_STREAM_LOG_UPDATE``, of the offsets and the commits, and in the one without
a class that its file source raises, of ``sources/``; in what it raises where a file was there already
as it put its own in place; and where the first batch was planned after it had looked for one."""
_DOUBLE_WRITES: Final = 10
"""An older driver can end one batch and plan the next one before it finds itself fenced: up to three
writes, each of which may end a query of the new driver. There may be several older drivers."""


def may_pass(error: BaseException) -> bool:
    """Return whether a query that failed with this may do better when it is started again."""
    is_of_program = not isinstance(error, Exception) or isinstance(error, _LASTING)
    return not is_of_program and _OF_A_WORKER not in str(error)


def is_double_write(error: BaseException) -> bool:
    """Return whether another driver had written a file of the checkpoint location that was Spark's turn.

    An older driver that was paused may do so with the last batch that it began.
    """
    is_of_query = isinstance(error, StreamingQueryException | Py4JError)
    return is_of_query and any(words in str(error) for words in _DOUBLE_WRITE)


class RestartPolicy:
    """Counts the restarts of one query. By one thread at a time."""

    def __init__(self, settings: RestartSettings, clock: Clock) -> None:
        """Begin with the first run of the query.

        Args:
            settings: ``job.restart.*``.
            clock: Tells how long a run lasted.
        """
        self._settings = settings
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._in_a_row = 0
        self._double_writes = 0
        self.restarts = 0
        """All that were granted, over the life of the query."""

    def began(self) -> None:
        """Record that a run begins."""
        self._began_ns = self._clock.monotonic_ns()

    def next_delay_ms(self, error: BaseException) -> int | None:
        """Grant a restart: return how long to wait before it, None if there will be none.

        After a double write the query starts again at once, some times in a row, whatever the
        strategy: nothing is wrong with the query, and the older driver is fenced at its next look.

        Args:
            error: What a run has failed with, or the start of one.
        """
        settings = self._settings
        if self._clock.monotonic_ns() - self._began_ns >= settings.reset_after_ms * _NS_PER_MS:
            self._in_a_row = self._double_writes = 0
        if is_double_write(error) and self._double_writes < _DOUBLE_WRITES:
            self._double_writes += 1
            self.restarts += 1
            return 0
        is_on = settings.strategy != "none" and self._in_a_row < settings.attempts
        if not is_on or not may_pass(error):
            return None
        delay_ms = self._delay_ms(self._in_a_row)
        self._in_a_row += 1
        self.restarts += 1
        return delay_ms

    def _delay_ms(self, before: int) -> int:
        settings = self._settings
        if settings.strategy == "fixed-delay":
            return settings.backoff_initial_ms
        delay_ms: float = settings.backoff_initial_ms
        for _ in range(before):
            # Not a power: one of a large multiplier is beyond what a float can hold.
            delay_ms = min(delay_ms * settings.backoff_multiplier, settings.backoff_max_ms)
        return round(min(delay_ms, settings.backoff_max_ms))
