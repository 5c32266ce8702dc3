"""The settings of a SparkContext, read without copying them."""

from typing import Any

from pyspark import SparkConf
from pyspark.sql import SparkSession

from statekeep.config.load import SPARK_PREFIX


def context_conf(spark: SparkSession) -> SparkConf:
    """Return the settings of the session's SparkContext, to be read only.

    ``SparkContext.getConf()`` copies all of them, by several calls into the JVM for each.
    """
    conf: SparkConf = spark.sparkContext._conf  # noqa: SLF001 - as above
    return conf


def own_entries(spark: SparkSession) -> list[tuple[str, str]]:
    """Return the settings of ours in the session's SparkContext, by their full names."""
    conf: Any = context_conf(spark)._jconf  # noqa: SLF001 - SparkConf in Python does not filter
    entries = conf.getAllWithPrefix(SPARK_PREFIX)
    return [(f"{SPARK_PREFIX}{entry._1()}", str(entry._2())) for entry in entries]  # noqa: SLF001 - a tuple's parts
