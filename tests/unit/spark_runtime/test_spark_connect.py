"""What is refused of a Spark Connect session: objects of PySpark's own classes, without a server."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.group import GroupedData
from pyspark.sql.connect.session import SparkSession

import statekeep as sk

CALLS: list[tuple[Callable[[Any], object], type]] = [
    (sk.grouped, GroupedData),
    (sk.grouped, DataFrame),
    (sk.check_session, SparkSession),
    (lambda spark: sk.import_spark_state(spark, "/there/is/none"), SparkSession),
]


@pytest.mark.parametrize(
    ("call", "kind"), CALLS, ids=["grouped", "not grouped", "session", "import"]
)
def test_what_belongs_to_spark_connect_is_refused_with_the_remedy(
    call: Callable[[Any], object], kind: type
) -> None:
    with pytest.raises(sk.ConfigError, match="Spark Connect") as caught:
        call(object.__new__(kind))
    remedy = " ".join(caught.value.hints)
    assert all(name in remedy for name in ("spark.remote", "SPARK_REMOTE", "spark.api.mode"))


class BegunError(Exception):
    """A session of either kind was about to begin."""


def test_the_session_builder_begins_a_classic_session_whatever_the_environment_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(*_: object) -> None:
        raise BegunError("classic")

    def serve(*_: object) -> None:
        raise BegunError("connect")

    monkeypatch.setenv("SPARK_API_MODE", "connect")
    monkeypatch.setattr(SparkContext, "getOrCreate", begin)
    monkeypatch.setattr(SparkSession, "_start_connect_server", serve)
    with pytest.raises(BegunError, match="classic"):
        sk.session_builder("local[1]").getOrCreate()
