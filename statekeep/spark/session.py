"""The session settings that placed tasks need: set them, or say which one is missing and why."""

import os
import shutil
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from statekeep.errors import ConfigError
from statekeep.spark.context_conf import context_conf
from statekeep.spark.redaction import REDACTION_KEY, REDACTION_REGEX

_MIN_LOCALITY_WAIT_S = 600
_OTHERS_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class RequiredSetting:
    """A setting of the SparkContext without which tasks would leave their state."""

    key: str
    value: str
    reason: str
    default: str
    """What Spark takes where the key is not set."""

    def is_met(self, actual: str) -> bool:
        """Whether ``actual`` will do."""
        if self.key.startswith("spark.locality.wait"):
            return _seconds(actual) >= _MIN_LOCALITY_WAIT_S
        return actual.strip().lower() == self.value


REQUIRED_SETTINGS = (
    RequiredSetting(
        "spark.shuffle.reduceLocality.enabled",
        "false",
        "else the size of a task's input draws it away from its state",
        "true",
    ),
    RequiredSetting(
        "spark.locality.wait",
        "600s",
        "else a task that waits for its executor is started without its state elsewhere",
        "3s",
    ),
    RequiredSetting(
        "spark.speculation",
        "false",
        "else a copy without state answers first and kills the healthy task",
        "false",
    ),
)
"""Read when the SparkContext starts; they cannot be changed in a running session."""


FAST_SETTINGS = {
    # First rows reach a Python worker after 4 ms, by TCP after 41.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""What makes batches shorter and is not required; Spark before 4.1 does not know all of them.

Set for local masters only: elsewhere the temporary directory may be too long for the name of a socket.
"""


def session_builder(master: str | None = None) -> SparkSession.Builder:
    """Return a session builder that has every setting the runtime requires, and `FAST_SETTINGS`.

    It also hides settings of ours, which may be secrets, in Spark's UI and event log. The session is a
    classic one, also where ``SPARK_API_MODE`` asks for Spark Connect.

    Executors of a local master run with this interpreter unless ``PYSPARK_PYTHON`` says otherwise.

    Args:
        master: Spark master URL; None leaves it to ``spark-submit``.

    Raises:
        ConfigError: There is no Java to start Spark with.
    """
    _require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    if master is not None:
        builder = builder.master(master)
    builder = builder.config("spark.api.mode", "classic")
    for setting in REQUIRED_SETTINGS:
        builder = builder.config(setting.key, setting.value)
    if (master or "").startswith("local") and is_umask_closed():
        for key, value in FAST_SETTINGS.items():
            builder = builder.config(key, value)
    return builder.config(REDACTION_KEY, REDACTION_REGEX)


@contextmanager
def session_of_command(master: str | None, settings: Mapping[str, str]) -> Generator[SparkSession]:
    """Give a command its session, which ends with it; or the one that there is already.

    Args:
        master: Spark master URL; None leaves it to ``spark-submit``.
        settings: Of Spark.

    Raises:
        ConfigError: There is no Java to start Spark with.
    """
    is_new = SparkSession.getActiveSession() is None
    builder = session_builder(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        if is_new:
            spark.stop()


def is_umask_closed() -> bool:
    """Return whether the sockets that the JVM makes can be written to by this user alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask & _OTHERS_WRITE == _OTHERS_WRITE


@contextmanager
def active(spark: SparkSession) -> Generator[None]:
    """Make a session the active one of this thread inside the block: Spark looks there for much."""
    before: Any = SparkSession.getActiveSession()
    session: Any = spark
    sessions: Any = session._get_j_spark_session_class(session._jvm)  # noqa: SLF001 - Spark has no other way
    sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001 - as above
    try:
        yield
    finally:
        if before is None:
            sessions.clearActiveSession()
        else:
            sessions.setActiveSession(before._jsparkSession)  # noqa: SLF001 - as above


def check_classic(given: object) -> None:
    """Refuse a session, a frame or groups of Spark Connect (decision 0062).

    Raises:
        ConfigError: ``given`` is one of these.
    """
    if type(given).__module__.startswith("pyspark.sql.connect."):
        raise ConfigError(
            "statekeep does not run on Spark Connect, whose programs have no JVM beside them:"
            f" given={type(given).__name__}",
            hint="give sk.session_builder() a master URL, or start the program with spark-submit; without"
            " spark.remote, SPARK_REMOTE and spark.api.mode=connect",
        )


def check_session(spark: SparkSession, *, is_forced: bool = False) -> list[str]:
    """Check that a session can run placed tasks; return what was overlooked if forced.

    Called on the driver at the start of each query.

    Raises:
        ConfigError: A required setting is missing: names setting, value and cure. Or the session is one
            of Spark Connect.
    """
    check_classic(spark)
    conf = context_conf(spark)
    complaints: list[str] = []
    for setting in REQUIRED_SETTINGS:
        actual = str(conf.get(setting.key, setting.default))
        if not setting.is_met(actual):
            complaints.append(
                f"{setting.key} must be {setting.value}: value={actual!r} ({setting.reason})"
            )
    if complaints and not is_forced:
        raise ConfigError(
            "the Spark session cannot keep tasks at their state: " + "; ".join(complaints),
            key=complaints[0].split(" ", 1)[0],
            hint="build the session with statekeep.spark.session_builder(), or pass these settings"
            " to spark-submit with --conf",
        )
    return complaints


def _require_java() -> None:
    """Refuse to start without Java: Spark would say that its gateway exited, and not why."""
    if not _JAVA_BY_OTHERS.isdisjoint(os.environ):
        return
    home = os.environ.get("JAVA_HOME")
    java = "java" if not home else str(Path(home) / "bin" / "java")
    if shutil.which(java) is None:
        raise ConfigError(
            f"Spark needs Java, and there is none: java={java}",
            key="JAVA_HOME",
            hint="install Java 17, or set JAVA_HOME to the directory that has bin/java",
        )


_JAVA_BY_OTHERS = frozenset({"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT"})
"""With one of these, Spark may find Java elsewhere, or has started it."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def _seconds(text: str) -> float:
    """Read a Spark duration; a bare number is milliseconds, as for ``spark.locality.wait``."""
    text = text.strip().lower()
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit) and text[: -len(unit)].strip().isdigit():
            return int(text[: -len(unit)]) * _UNITS[unit]
    return int(text) / 1000 if text.isdigit() else 0.0
