"""A processor that runs as the runtime runs it, and tells a trace what goes in and what comes out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from typing_extensions import override

from statekeep.spark.batch_replay.trace import TIMERS, KeyTrace, Step, Tracer, rows_of
from statekeep.spark.batch_replay.traced_state import TracedHandle
from statekeep.spark.operator.handle import LocalHandle


class TracedProcessor(StatefulProcessor):
    """Calls the user's processor for each key, with the same arguments but for what is traced."""

    def __init__(
        self,
        processor: StatefulProcessor,
        tracer: Tracer,
        task: int,
        columns: Sequence[str],
        output: Sequence[str],
    ) -> None:
        """Wrap a processor.

        Args:
            processor: The user's.
            tracer: Gets what it does.
            task: Number of the task.
            columns: Of the rows that it gets.
            output: Columns of the rows that it yields.
        """
        self._processor = processor
        self._tracer = tracer
        self._task = task
        self._columns = columns
        self._output = output

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        assert isinstance(handle, LocalHandle)  # noqa: S101 - this runtime's
        self._handle = TracedHandle(handle, self._tracer)
        self._processor.init(self._handle)

    @override
    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        trace = self._begin()
        if trace is not None:
            trace.rows_in += rows_of(initialState, ())
        self._processor.handleInitialState(key, initialState, timerValues)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:
        trace = self._begin()
        if trace is None:
            return self._processor.handleInputRows(key, rows, timerValues)
        given = self._seen(rows, trace)

        def drain() -> None:
            for _ in given:  # rows that the processor did not want are shown, too
                continue

        results = self._processor.handleInputRows(key, given, timerValues)
        return self._yielded(results, trace, drain)

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Any:
        trace = self._begin()
        self._tracer.add(Step(TIMERS, "fired", None, expiredTimerInfo.getExpiryTimeInMs()))
        results = self._processor.handleExpiredTimer(
            key=key, timerValues=timerValues, expiredTimerInfo=expiredTimerInfo
        )
        return results if trace is None else self._yielded(results, trace, lambda: None)

    @override
    def close(self) -> None:
        self._processor.close()

    def _begin(self) -> KeyTrace | None:
        handle = self._handle
        return self._tracer.begin(handle.key_bytes, handle.key, self._task)

    def _seen(self, rows: Iterable[Any], trace: KeyTrace) -> Iterator[Any]:
        for given in rows:
            trace.rows_in += rows_of(given, self._columns)
            yield given

    def _yielded(self, results: Any, trace: KeyTrace, drain: Callable[[], None]) -> Any:  # noqa: ANN401 - as a processor gives it
        """Return the same results, seen as they are taken; what is none is refused by who takes it."""
        if not isinstance(results, Iterable):
            return results

        def seen() -> Iterator[Any]:
            for result in results:
                trace.rows_out += rows_of(result, self._output)
                yield result
            drain()

        return seen()
