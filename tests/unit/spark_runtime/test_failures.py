"""What a user reads first of a query that failed."""

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from typing_extensions import override

from statekeep.errors import StateSchemaError
from statekeep.spark import failures
from statekeep.spark.failures import explain, first_line, summarise

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/env/site-packages/statekeep/spark/worker/process.py", line 159, in process
    run.process(task, iter([part]))
  File "/home/ann/job.py", line 11, in handleInputRows
    total = int(row.price)
            ^^^^^^^^^^^^^^
  File "/home/ann/prices.py", line 3, in parse
    raise ValueError(text)
ValueError: bad price
12,50
while processing grouping key ('w4',)
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION]
\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1097)
"""


class WorkerError(Exception):
    """In the place of PySpark's, which needs a JVM."""


class SparksText(StreamingQueryException):
    """As PySpark's: its text is made of `_desc` at each look."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._desc = text

    @override
    def __str__(self) -> str:
        return self._desc


@pytest.fixture(autouse=True)
def worker_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "PythonException", WorkerError)


def test_the_error_of_a_processor_comes_first_with_the_users_own_lines() -> None:
    told: Any = explain(SparksText("[STREAM_FAILED] Query terminated"), WorkerError(WORKER))
    assert str(told) == (
        "ValueError: bad price\n"
        "12,50\n"
        "while processing grouping key ('w4',)\n"
        '  File "/home/ann/job.py", line 11, in handleInputRows\n'
        "    total = int(row.price)\n"
        "            ^^^^^^^^^^^^^^\n"
        '  File "/home/ann/prices.py", line 3, in parse\n'
        "    raise ValueError(text)\n"
        "\n"
        "Spark's own text:\n"
        "[STREAM_FAILED] Query terminated"
    )


def test_an_error_of_the_driver_comes_first_with_its_remedy() -> None:
    error = StateSchemaError("value does not fit: variable=total")
    error.add_note("hint: declare it as long")
    text = str(explain(SparksText("[STREAM_FAILED] Query terminated"), error))
    assert text.startswith(f"StateSchemaError: {error}\n")
    assert "declare it as long" in text.partition("Spark's own text")[0]


def test_a_failure_without_an_error_of_ours_stays_as_it_is() -> None:
    assert (
        str(explain(SparksText("[STREAM_FAILED] no offsets"), None)) == "[STREAM_FAILED] no offsets"
    )


def test_of_chained_errors_the_last_one_is_reported() -> None:
    chained = WORKER.replace(
        "ValueError: bad price",
        "KeyError: 'price'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/home/ann/job.py", line 14, in handleInputRows\n'
        "    raise ValueError\n"
        "ValueError: bad price",
    )
    assert summarise(WorkerError(chained)).splitlines() == [
        "ValueError: bad price",
        "12,50",
        "while processing grouping key ('w4',)",
        '  File "/home/ann/job.py", line 14, in handleInputRows',
        "    raise ValueError",
    ]


def test_workers_without_the_package_are_said_to_be_so() -> None:
    text = (
        "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
        '  File "/env/pyspark/serializers.py", line 483, in loads\n'
        "    return cloudpickle.loads(obj, encoding=encoding)\n"
        "ModuleNotFoundError: No module named 'statekeep'\n SQLSTATE: 38000\n"
    )
    first, hint = summarise(WorkerError(text)).splitlines()
    assert first == "ModuleNotFoundError: No module named 'statekeep'"
    assert "no package statekeep" in hint
    assert "PYSPARK_PYTHON" in hint


def test_one_line_of_a_workers_error_says_what_its_error_was() -> None:
    assert first_line(WorkerError(WORKER)) == "ValueError: bad price"


def test_one_line_of_an_error_shows_no_secret_and_has_an_end() -> None:
    line = first_line(StateSchemaError("root=s3://key:secret@bucket/x " + "x" * 9_000))
    assert line.startswith("StateSchemaError: root=")
    assert "secret" not in line
    assert len(line) <= 500
    line = first_line(StateSchemaError("x" * 440 + " https://me:Zq9hunter2" + "x" * 99 + "@host"))
    assert "Zq9hunter2" not in line
