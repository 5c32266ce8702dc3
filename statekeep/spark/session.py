"""The session settings that anchored tasks need: set them, or say which one is missing and why."""

import os
import sys
from dataclasses import dataclass

from pyspark.sql import SparkSession

from statekeep.errors import ConfigError
from statekeep.spark.redaction import REDACTION_KEY, REDACTION_REGEX

_MIN_LOCALITY_WAIT_S = 600


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


def session_builder(master: str | None = None) -> SparkSession.Builder:
    """Return a session builder that has every setting the runtime requires.

    It also hides settings of ours, which may be secrets, in Spark's UI and event log.

    Executors of a local master run with this interpreter unless ``PYSPARK_PYTHON`` says otherwise.

    Args:
        master: Spark master URL; None leaves it to ``spark-submit``.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    if master is not None:
        builder = builder.master(master)
    for setting in REQUIRED_SETTINGS:
        builder = builder.config(setting.key, setting.value)
    return builder.config(REDACTION_KEY, REDACTION_REGEX)


def check_session(spark: SparkSession, *, is_forced: bool = False) -> list[str]:
    """Check that a session can run anchored tasks; return what was overlooked if forced.

    Called on the driver at the start of each query.

    Raises:
        ConfigError: A required setting is missing: names setting, value and cure.
    """
    if not hasattr(spark, "_jsparkSession"):
        msg = "statekeep needs a classic Spark session; this one is Spark Connect"
        raise ConfigError(msg, hint="start the driver with a master URL, not with a remote one")
    conf = spark.sparkContext.getConf()
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


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def _seconds(text: str) -> float:
    """Read a Spark duration; a bare number is milliseconds, as for ``spark.locality.wait``."""
    text = text.strip().lower()
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit) and text[: -len(unit)].strip().isdigit():
            return int(text[: -len(unit)]) * _UNITS[unit]
    return int(text) / 1000 if text.isdigit() else 0.0
