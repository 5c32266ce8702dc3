"""Run the tests that matter on each version of Python and PySpark that is supported.

``make test-versions`` makes a virtual environment for each pair in ``.venv/versions``, with the packages
of development but for PySpark, and runs the tests that matter there. A
Python is looked for on the path and among those of pyenv; a pair without one is reported as not run.
Exit status 1 if a pair has failed or was not run. What passed, and when, is in ``docs/reference/versions.md``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PINS: Final = ROOT / "requirements" / "development.txt"
ENVIRONMENTS: Final = ROOT / ".venv" / "versions"
PAIRS: Final = (("3.12", "4.0"), ("3.11", "4.1"), ("3.12", "4.2"), ("3.13", "4.3"))
"""(Python, PySpark); `make test` runs on the newest PySpark, on the Python of the virtual environment."""
LEAKS: Final = ("-W", "ignore::ResourceWarning")
"""PySpark before 4.2 leaves its sockets to the garbage collector, which warns of each."""
EXTRAS: Final = "spark,s3,azure,gcs,kafka,hdfs,testing"
SPARK_TESTS: Final = (
    "arrow_queries",
    "bad_input",
    "driver_recovery",
    "ends_of_queries",
    "equivalence",
    "event_time_column",
    "group_state",
    "initial_state",
    "keys_like_spark",
    "lost_local_state",
    "operators_in_a_row",
    "process_life",
    "query_events",
    "runtime",
    "sinks_of_spark",
    "state_frame",
    "state_schemas",
    "timers",
)
UNIT: Final = ("-n", "auto", "--dist", "loadfile", "tests/unit")
SUMMARY: Final = re.compile(r"\d+ \w+.* in [\d.]+s")
DELTA: Final = ("-m", "integration", "tests/integration/test_delta_sink.py")
"""Is skipped on versions of PySpark that Delta Lake has no release for, such as the newest one."""
SINCE: Final = {
    "equivalence": "4.2",
    "event_time_column": "4.1",
    "initial_state": "4.1",
    "keys_like_spark": "4.1",
    "operators_in_a_row": "4.1",
}
"""These compare with what older releases lack: the operator on rows, and from 4.2 on its tester."""


class VersionError(Exception):
    """A pair cannot be run; the text says why."""


def python_of(version: str) -> str:
    """Return the path of a Python: a version manager has names on the path that do not start."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    question = ["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    for found in (*([on_path] if on_path else []), *map(str, of_pyenv)):
        if _run([found, *question])[1].strip() == version:
            return found
    raise VersionError(f"no python{version} on the path or in ~/.pyenv")


def environment_of(python: str, spark: str) -> Path:
    """Make the virtual environment of a pair, if it is not there; return its Python."""
    place = ENVIRONMENTS / f"python{python}-spark{spark}"
    made = place / "bin" / "python"
    stamp = place / "made"
    if not stamp.exists() or stamp.read_text() != PINS.read_text():
        pins = place / "pins.txt"
        _check([python_of(python), "-m", "venv", "--clear", str(place)])
        pins.write_text(re.sub(r"^pyspark==.*\n", "", PINS.read_text(), flags=re.MULTILINE))
        install = [str(made), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        wanted = ["-e", f".[{EXTRAS}]", f"pyspark=={spark}.*", *_packages_of_development()]
        _check([*install, "-c", str(pins), *wanted])
        stamp.write_text(PINS.read_text())
    return made


def _packages_of_development() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages: list[str] = project["dependency-groups"]["dev"]
    return packages


def tests_of(spark: str) -> tuple[Sequence[str], ...]:
    """Return the tests that matter, each part for a run of its own: they have modules of one name."""
    names = [name for name in SPARK_TESTS if SINCE.get(name, "") <= spark]
    return UNIT, [f"tests/spark/test_{name}.py" for name in names], DELTA


def run_tests(python: Path, spark: str, tests: Sequence[str]) -> str:
    """Run tests there; return pytest's last line. What fails is printed."""
    leaks = LEAKS if spark in {"4.0", "4.1"} else ()
    options = ["-q", "-m", "not integration and not long", *leaks]
    status, said = _run([str(python), "-m", "pytest", *options, *tests])
    summary = next(
        (line for line in reversed(said.splitlines()) if SUMMARY.match(line)), "no test ran"
    )
    if status != 0:
        sys.stdout.write(said[-12_000:])
        raise VersionError(summary)
    return summary


def _check(command: Sequence[str]) -> None:
    status, said = _run(command)
    if status != 0:
        raise VersionError(f"{' '.join(command)} failed:\n{said[-4000:]}")


def _run(command: Sequence[str]) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="*", metavar="PYTHON/SPARK", help="such as 3.12/4.3")
    parser.add_argument("--tests", nargs="+", help="files to run instead")
    arguments = parser.parse_args()
    pairs = [tuple(pair.split("/")) for pair in arguments.pairs] or PAIRS
    failed = 0
    for python, spark in pairs:
        began = time.monotonic()
        try:
            made = environment_of(python, spark)
        except VersionError as error:
            failed += 1
            _say(f"Python {python}, PySpark {spark}: FAILED: {error}", began)
            continue
        for tests in tests_of(spark) if arguments.tests is None else (arguments.tests,):
            try:
                outcome = run_tests(made, spark, tests)
            except VersionError as error:
                failed += 1
                outcome = f"FAILED: {error}"
            _say(f"Python {python}, PySpark {spark}: {outcome}", began)
    return 1 if failed else 0


def _say(line: str, began: float) -> None:
    sys.stdout.write(f"{line} (after {time.monotonic() - began:.0f} s)\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
