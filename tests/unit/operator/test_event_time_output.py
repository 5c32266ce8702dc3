"""The column of the output that becomes the event time: what is late there is an error."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from operator_kit import ByFunction, run

from statekeep.errors import StateSchemaError
from statekeep.spark.operator.clock import BatchClock, TimeMode

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
WINDOW = "w struct<start:timestamp,end:timestamp>"


def at(seconds: float) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=seconds)


def outcome_of(value: Any, output: str = "at timestamp", **options: Any) -> list[Any]:
    """Yield one row beside a null; the watermark of the batch before was at 17 seconds."""

    def handle(_: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        list(rows)
        if options.get("is_pandas"):
            yield pd.DataFrame({"at": [value.replace(tzinfo=None), None]})
        else:
            yield from ((value,), (None,))

    _, table = run(
        ByFunction(handle_rows=handle),
        [("a", 1)],
        output=output,
        output_time_column=output.split(" ", maxsplit=1)[0],
        clock=BatchClock(0, 27_000, 17_000),
        **options,
    )
    found: list[Any] = table.column(0).to_pylist()
    return found


@pytest.mark.parametrize("mode", TimeMode)
def test_rows_above_the_watermark_of_the_batch_before_are_put_out(mode: TimeMode) -> None:
    assert outcome_of(at(17.001), time_mode=mode) == [at(17.001), None]
    assert outcome_of(at(17.001), is_pandas=True)[0] == at(17.001)
    window = {"start": at(10), "end": at(18)}
    assert outcome_of(window, WINDOW) == [window, None]


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (at(17), {}),
        (at(3), {"is_pandas": True}),
        ({"start": at(10), "end": at(17)}, {"output": WINDOW}),
    ],
)
def test_a_row_that_the_watermark_has_reached_is_an_error(
    value: Any, options: dict[str, Any]
) -> None:
    words = r"EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED.*current_watermark_value=17000"
    with pytest.raises(StateSchemaError, match=words) as failure:
        outcome_of(value, **options)
    assert "eventTimeColumnName" in failure.value.hints[0]
