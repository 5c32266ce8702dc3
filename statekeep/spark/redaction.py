"""Secrets in a Spark conf: hidden in Spark's UI and event log, or refused."""

import logging
from typing import Any, Final, cast

from pyspark.sql import SparkSession

from statekeep.config.load import ENVIRONMENT_PREFIX, SPARK_PREFIX
from statekeep.config.model import Config
from statekeep.config.settings import Setting
from statekeep.errors import ConfigError

logger = logging.getLogger(__name__)

REDACTION_KEY: Final = "spark.redaction.regex"
REDACTION_REGEX: Final = (
    "(?i)secret|passw|passphrase|token|(?:access|account|private|keystore)[._-]?key|key[._-]pem"
    "|connection[._-]?string|credential|jaas"
    f"|{SPARK_PREFIX.replace('.', '[.]')}|{ENVIRONMENT_PREFIX}"
)
"""What Spark hides by default and more: each entry of a conf whose name or value has a match. Our own
settings are hidden whole; `statekeep config explain` shows those that are no secrets."""


def check_redaction(spark: SparkSession, conf: Config) -> None:
    """Check that Spark shows no secret among our settings in its conf. On the driver, at start.

    Spark reads the pattern when the SparkContext starts, so nothing can be hidden later.

    Args:
        spark: The session.
        conf: Our settings in its conf.

    Raises:
        ConfigError: The UI and the event log show one.
    """
    secrets = [setting for setting in conf.settings.values() if setting.holds_secret]
    if not secrets:
        return
    context = cast("Any", spark.sparkContext)
    jvm = context._jvm  # noqa: SLF001 - Spark itself is asked what it hides
    entries = jvm.java.util.ArrayList()
    for setting in secrets:
        entries.add(jvm.scala.Tuple2(_key_of(setting), setting.value))
    redacted = jvm.org.apache.spark.util.Utils.redact(
        context._jsc.sc().conf(),  # noqa: SLF001 - as above
        jvm.PythonUtils.toSeq(entries),
    )
    shown = [
        _key_of(setting)
        for number, setting in enumerate(secrets)
        if redacted.apply(number)._2() == setting.value  # noqa: SLF001 - a tuple's second part
    ]
    if shown:
        raise ConfigError(
            f"the UI and the event log of this Spark session show secrets: keys={','.join(shown)}",
            key=shown[0],
            hint="give them to grouped() or in the environment of the driver, or build the session "
            f"with statekeep.spark.session_builder(), which sets {REDACTION_KEY}; and replace them, "
            "as they have been shown",
        )
    command = str(jvm.java.lang.System.getProperty("sun.java.command"))
    named = [_key_of(setting) for setting in secrets if setting.value in command]
    if named:
        logger.warning(
            "every user of this machine sees secrets in the process list: keys=%s: give them to "
            "grouped() or in the environment of the driver, and replace them",
            ",".join(named),
        )


def _key_of(setting: Setting) -> str:
    return setting.source.removeprefix("spark conf ")
