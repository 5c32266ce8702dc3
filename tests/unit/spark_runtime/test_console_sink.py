"""The console sink prints a batch as Spark's own does."""

import sys
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from statekeep.spark.sinks import _console_sink


class Shown:
    """A frame that prints how it is shown."""

    def show(self, rows: int, *, truncate: Any) -> None:
        sys.stdout.write(f"{rows} rows, truncate={truncate}\n")


def test_the_header_of_a_batch_is_sparks(capsys: pytest.CaptureFixture[str]) -> None:
    _console_sink(20, is_truncated=False)(cast("DataFrame", Shown()), 7)
    rule = "-------------------------------------------"
    assert capsys.readouterr().out == f"{rule}\nBatch: 7\n{rule}\n20 rows, truncate=False\n"
