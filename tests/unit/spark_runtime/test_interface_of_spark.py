"""What programs call of Spark's writer, query and listeners: it is there, and the page names it."""

import inspect
import re
from pathlib import Path

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

import statekeep as sk
from statekeep.spark.writer import StatefulStreamWriter

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/spark-operator.md").read_text()
OURS: dict[type, type] = {
    DataStreamWriter: StatefulStreamWriter,
    StreamingQuery: sk.StatefulStreamingQuery,
}


def public_names(of: type) -> list[str]:
    """Return the methods and properties of a class that are for programs."""
    return [name for name in vars(of) if not name.startswith("_")]


def named_on_page(of: type) -> set[str]:
    """Return what the first column of a class's table names."""
    table = PAGE.partition(f"| `{of.__name__}`")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    "of", [DataStreamWriter, StreamingQuery, StreamingQueryManager, StreamingQueryListener]
)
def test_the_page_names_all_of_a_class_and_nothing_else(of: type) -> None:
    assert named_on_page(of) == set(public_names(of))


@pytest.mark.parametrize("of", OURS)
def test_each_name_is_there_with_the_parameters_of_spark(of: type) -> None:
    for name in public_names(of):
        theirs, ours = getattr(of, name), inspect.getattr_static(OURS[of], name)
        assert isinstance(ours, property) == isinstance(theirs, property), name
        if not isinstance(theirs, property):
            asked = inspect.signature(theirs).parameters.keys()
            assert inspect.signature(ours).parameters.keys() >= asked, name
