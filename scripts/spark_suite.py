"""Run Spark's own tests of transformWithState on this runtime, and hold them against a table.

The tests come from PySpark's package and run unchanged; only the operator's call is ours. Tests that
are known not to pass stand, with the reason, in the table of ``docs/reference/spark-operator.md``. Exit status 1 if
another test fails, or if a row of the table holds for no test any more.
"""

import argparse
import fnmatch
import re
import signal
import sys
import tempfile
import time
import unittest
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any, Final, TextIO

import pyspark
import pyspark.sql
from pyspark.sql import GroupedData, SparkSession
from pyspark.testing.sqlutils import ReusedSQLTestCase
from typing_extensions import override

import statekeep as sk

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "docs" / "reference" / "spark-operator.md"
ROW: Final = re.compile(r"^\| `([^`]*\.test_[^`]*)` \| (.+) \|$", re.MULTILINE)
MODULES: Final = (
    "test_transform_with_state",
    "test_pandas_transform_with_state",
    "test_transform_with_state_state_variable",
    "test_pandas_transform_with_state_state_variable",
    "test_transform_with_state_checkpoint_v2",
    "test_pandas_transform_with_state_checkpoint_v2",
    "test_transform_with_state_state_variable_checkpoint_v2",
    "test_pandas_transform_with_state_state_variable_checkpoint_v2",
    "test_tws_tester",
)
LIMIT_S: Final = 60
"""A test that takes longer has failed: one query that hangs must not hold up all others."""


def read_table(text: str) -> dict[str, str]:
    """Return ``{pattern of Class.test: reason}``."""
    return dict(ROW.findall(text))


def tests_of_spark() -> Iterator[unittest.TestCase]:
    """Yield the tests of the operator, from the archive that PySpark gives to its workers."""
    archive = Path(next(iter(pyspark.__path__))) / "python" / "lib" / "pyspark.zip"
    pyspark.sql.__path__.append(f"{archive}/pyspark/sql")
    for name in MODULES:
        module = import_module(f"pyspark.sql.tests.pandas.streaming.{name}")
        if hasattr(module, "time"):
            # They wait two seconds so that two files differ in their time; milliseconds do.
            vars(module)["time"] = SimpleNamespace(sleep=lambda _: time.sleep(0.02), time=time.time)  # noqa: TID251 - real files, real times
        for kind in vars(module).values():
            if (
                isinstance(kind, type)
                and issubclass(kind, ReusedSQLTestCase)
                and kind.__module__ == module.__name__
                and kind.__name__
                != "TwsTesterTests"  # of a class of Spark's that needs no operator
            ):
                yield from unittest.defaultTestLoader.loadTestsFromTestCase(kind)  # type: ignore[misc]  # a suite of tests


def name_of(test: unittest.TestCase) -> str:
    """Return the name of a test as the table has it."""
    return ".".join(test.id().split(".")[-2:])


def run_on_our_chain(spark: SparkSession, directory: Path) -> None:
    """Replace the call, and the Spark context that each class of tests would start and stop."""
    settings = {"job.logged.store.base.dir": str(directory)}

    def rows(self: GroupedData, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Spark's
        return sk.grouped(self, settings).transformWithState(*args, **kwargs)

    def frames(self: GroupedData, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Spark's
        return sk.grouped(self, settings).transformWithStateInPandas(*args, **kwargs)

    GroupedData.transformWithState = rows  # type: ignore[assignment]
    GroupedData.transformWithStateInPandas = frames  # type: ignore[assignment]

    def set_up(cls: Any) -> None:  # noqa: ANN401 - a class of Spark's tests
        cls.sc = spark.sparkContext
        cls.spark = spark.newSession()
        for key, value in cls.conf().getAll():
            if cls.spark.conf.isModifiable(key):
                cls.spark.conf.set(key, value)

    ReusedSQLTestCase.setUpClass = classmethod(set_up)  # type: ignore[assignment]
    ReusedSQLTestCase.tearDownClass = classmethod(lambda _: None)  # type: ignore[assignment]


class Outcomes(unittest.TestResult):
    """Prints each test as it ends, and keeps what became of it."""

    def __init__(self, table: Mapping[str, str], out: TextIO) -> None:
        super().__init__()
        self.passed: list[str] = []
        self.listed: list[str] = []
        self.failed: list[str] = []
        self.left_out: list[str] = []
        self._table = table
        self._out = out
        self._began = 0.0

    @override
    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._began = time.monotonic()

    @override
    def addSuccess(self, test: unittest.TestCase) -> None:
        self._end(self.passed, "passed", test)

    @override
    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._end(self.left_out, f"left out by Spark ({reason})", test)

    @override
    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._fail(test, err)

    @override
    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._fail(test, err)

    def _fail(
        self,
        test: unittest.TestCase,
        error: tuple[type[BaseException], BaseException, TracebackType],
    ) -> None:
        if any(fnmatch.fnmatchcase(name_of(test), pattern) for pattern in self._table):
            first = str(error[1]).strip().split("\n", 1)[0]
            self._end(self.listed, f"listed: {error[0].__name__}: {first:.150}", test)
            return
        self._end(self.failed, "FAILED", test)
        self._out.write(self._exc_info_to_string(error, test))  # type: ignore[attr-defined]

    def _end(self, kind: list[str], word: str, test: unittest.TestCase) -> None:
        kind.append(name_of(test))
        self._out.write(f"{time.monotonic() - self._began:5.1f} s  {name_of(test)}  {word}\n")
        self._out.flush()


@contextmanager
def limited(test: unittest.TestCase) -> Iterator[None]:
    """Raise in a test that takes too long."""

    def give_up(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's
        msg = f"no end after {LIMIT_S} s: {name_of(test)}"
        raise TimeoutError(msg)

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)


def run(tests: Iterable[unittest.TestCase], outcomes: Outcomes) -> None:
    """Run tests class by class."""
    by_class = defaultdict[type[unittest.TestCase], list[unittest.TestCase]](list)
    for test in tests:
        by_class[type(test)].append(test)
    for kind, members in by_class.items():
        kind.setUpClass()
        for test in members:
            with limited(test):
                test.run(outcomes)


def stale_rows(table: Mapping[str, str], outcomes: Outcomes, names: Iterable[str]) -> list[str]:
    """Return the rows of the table whose tests were run and passed, all of them, or do not exist."""
    ran = {*outcomes.passed, *outcomes.listed}
    return [
        pattern
        for pattern in table
        if not any(fnmatch.fnmatchcase(name, pattern) for name in outcomes.listed)
        and (
            any(fnmatch.fnmatchcase(name, pattern) for name in ran)
            or not any(fnmatch.fnmatchcase(name, pattern) for name in names)
        )
    ]


def main() -> int:
    """Run the suite; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="only tests like these, as Class.test_name")
    wanted = parser.parse_args().patterns or ["*"]
    table = read_table(TABLE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as directory:
        tempfile.tempdir = directory  # the tests leave their directories behind
        spark = (
            sk.session_builder("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        run_on_our_chain(spark, Path(directory) / "local")
        tests = {name_of(test): test for test in tests_of_spark()}
        chosen = [
            test
            for name, test in tests.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
        ]
        outcomes = Outcomes(table, sys.stdout)
        run(chosen, outcomes)
        spark.stop()
    stale = stale_rows(table, outcomes, tests)
    for pattern in stale:
        print(f"passes, take it out of {TABLE.name}: {pattern}")  # noqa: T201 - a program
    print(  # noqa: T201 - a program
        f"{len(outcomes.passed)} passed, {len(outcomes.listed)} listed, {len(outcomes.failed)} failed, "
        f"{len(outcomes.left_out)} left out by Spark"
    )
    return 1 if stale or outcomes.failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
