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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
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


@dataclass(frozen=True)
class Found:
    """What became of tests, by name."""

    passed: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, other: "Found") -> None:
        """Take over what another process found."""
        self.passed.extend(other.passed)
        self.listed.extend(other.listed)
        self.failed.extend(other.failed)
        self.left_out.extend(other.left_out)


class Outcomes(unittest.TestResult):
    """Prints each test as it ends, and keeps what became of it."""

    def __init__(self, table: Mapping[str, str], out: TextIO) -> None:
        super().__init__()
        self.found = Found()
        self._table = table
        self._out = out
        self._began = 0.0

    @override
    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._began = time.monotonic()

    @override
    def addSuccess(self, test: unittest.TestCase) -> None:
        self._end(self.found.passed, "passed", test)

    @override
    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._end(self.found.left_out, f"left out by Spark ({reason})", test)

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
            self._end(self.found.listed, f"listed: {error[0].__name__}: {first:.150}", test)
            return
        self._end(self.found.failed, "FAILED", test)
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


def stale_rows(table: Mapping[str, str], found: Found, names: Iterable[str]) -> list[str]:
    """Return the rows of the table whose tests were run and passed, all of them, or do not exist."""
    ran = {*found.passed, *found.listed}
    return [
        pattern
        for pattern in table
        if not any(fnmatch.fnmatchcase(name, pattern) for name in found.listed)
        and (
            any(fnmatch.fnmatchcase(name, pattern) for name in ran)
            or not any(fnmatch.fnmatchcase(name, pattern) for name in names)
        )
    ]


def run_part(part: int, parts: int, wanted: Sequence[str]) -> tuple[list[str], Found]:
    """Run every so many-th class of the chosen tests in this process.

    Returns:
        The names of all tests there are, and what became of those of this part.
    """
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
        kinds = list(dict.fromkeys(map(type, tests.values())))
        outcomes = Outcomes(read_table(TABLE.read_text(encoding="utf-8")), sys.stdout)
        chosen = [
            test
            for name, test in tests.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
            and kinds.index(type(test)) % parts == part
        ]
        run(chosen, outcomes)
        spark.stop()
    return list(tests), outcomes.found


def main() -> int:
    """Run the suite; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="only tests like these, as Class.test_name")
    parser.add_argument("--processes", type=int, default=1, help="each with a session of its own")
    arguments = parser.parse_args()
    wanted, parts = arguments.patterns or ["*"], arguments.processes
    with ProcessPoolExecutor(parts, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_part, part, parts, wanted) for part in range(parts)]
        names: list[str] = []
        found = Found()
        for future in futures:
            names, of_part = future.result()
            found.add(of_part)
    stale = stale_rows(read_table(TABLE.read_text(encoding="utf-8")), found, names)
    for pattern in stale:
        print(f"passes, take it out of {TABLE.name}: {pattern}")  # noqa: T201 - a program
    for name in found.failed:
        print(f"FAILED {name}")  # noqa: T201 - a program
    print(  # noqa: T201 - a program
        f"{len(found.passed)} passed, {len(found.listed)} listed, {len(found.failed)} failed, "
        f"{len(found.left_out)} left out by Spark"
    )
    ran = found.passed or found.listed or found.left_out
    return 1 if stale or found.failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
