"""Bad input on Spark: a clear error that names what is wrong, before anything is lost."""

import shutil

import pytest
from conftest import Stream
from processors import Count, Overflowing
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.streaming import StatefulProcessorHandle
from typing_extensions import override

import statekeep as sk
from statekeep.errors import (
    CheckpointCorruptError,
    CheckpointLocationError,
    ConfigError,
    StateSchemaError,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_used_checkpoint_location_beside_an_empty_log_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    stream.run()
    with pytest.raises(CheckpointLocationError, match="job log has no commit"):
        stream.run(blob__store__uri=str(stream.root / "elsewhere"))


def test_the_error_of_a_renamed_query_has_its_name_and_where_that_comes_from(
    stream: Stream,
) -> None:
    stream.add_batches(1)
    stream.run()
    with pytest.raises(CheckpointLocationError) as caught:
        stream.run(job__name="renamed")
    assert "the job's name is 'renamed', set by settings" in str(caught.value)


def test_the_checkpoint_location_of_another_query_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    backup = {"blob.store.uri": str(stream.root / "backup")}
    stream.settings = backup
    stream.run()
    shutil.rmtree(stream.location)
    with pytest.raises(CheckpointLocationError, match="is empty"):
        stream.run()


def test_a_stateful_operator_upstream_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    counted = stream.frame().groupBy("key").count()
    with pytest.raises(ConfigError, match="an aggregation"):
        sk.grouped(counted.groupBy("key"))


def test_a_processor_that_cannot_be_sent_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    processor = Count()
    processor.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="cannot be sent"):
        stream.stateful(processor)


class NotNull(Count):
    """Declares a field of its state as not null."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "n long NOT NULL, s long")


def test_state_that_cannot_be_kept_is_refused_before_the_start(stream: Stream) -> None:
    stream.add_batches(1)
    with pytest.raises(StateSchemaError, match=r"not null: .*variable=count fields=n"):
        stream.stateful(NotNull())


def test_an_unknown_store_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    with pytest.raises(ConfigError, match="unknown store: store=stat "):
        stream.run(stores__stat__backup__factories="blob")


def test_a_sink_without_idempotence_is_refused_by_name(stream: Stream) -> None:
    stream.add_batches(1)
    writer = stream.stateful().writeStream.option("checkpointLocation", str(stream.location))
    with pytest.raises(ConfigError, match="format='delta' supported=csv"):
        writer.format("delta").start()


def test_a_local_directory_that_cannot_be_written_is_named(stream: Stream) -> None:
    stream.add_batches(1)
    (stream.root / "file").write_text("not a directory")
    with pytest.raises(StreamingQueryException, match=r"job\.logged\.store\.base\.dir|/file"):
        stream.run(job__logged__store__base__dir=str(stream.root / "file"))


def test_a_backup_location_that_cannot_be_written_is_named(stream: Stream) -> None:
    stream.add_batches(1)
    (stream.root / "file").write_text("not a directory")
    with pytest.raises(ConfigError, match="/file"):
        stream.run(blob__store__uri=str(stream.root / "file" / "backup"))


def test_another_type_of_the_key_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    stream.run()
    stream.key = F.length("key").alias("key_length")
    with pytest.raises(ConfigError, match="another grouping key: before='struct<key:string>'"):
        stream.run()


def test_a_session_without_the_settings_is_refused_by_name(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add_batches(1)
    conf = stream.spark.sparkContext.getConf().set("spark.locality.wait", "3s")
    monkeypatch.setattr(stream.spark.sparkContext, "_conf", conf)
    with pytest.raises(ConfigError, match=r"spark\.locality\.wait must be 600s: value='3s'"):
        sk.grouped(stream.frame().groupBy("key"))


def test_a_value_that_does_not_fit_the_schema_names_variable_key_and_types(
    stream: Stream,
) -> None:
    stream.add_batches(1)
    with pytest.raises(StreamingQueryException, match=r"count.*key-.*(str|bigint|long)"):
        stream.start(Overflowing()).awaitTermination()
    assert stream.delivered == []
    stream.run()
    assert stream.received() == stream.expected(1)


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_a_damaged_record_of_the_job_log_stops_the_start_and_changes_nothing(
    stream: Stream, damage: str
) -> None:
    backup = stream.root / "backup"
    stream.settings = {"blob.store.uri": str(backup)}
    stream.add_batches(2)
    stream.run()
    records = sorted((backup / "counts" / "log").iterdir())
    commit = next(path for path in reversed(records) if b" commit " in path.read_bytes()[:40])
    sound = commit.read_bytes()
    bad = sound[:-9] if damage == "truncated" else sound[:-9] + b"#" + sound[-8:]
    commit.write_bytes(bad)
    stream.add_batches(1)
    with pytest.raises(CheckpointCorruptError, match="position="):
        stream.run()
    commit.write_bytes(sound)
    stream.run()
    assert stream.received() == stream.expected(3)


def test_a_job_under_the_name_of_another_is_refused(stream: Stream) -> None:
    stream.settings = {"blob.store.uri": str(stream.root / "backup")}
    stream.add_batches(1)
    stream.run()
    other = Stream(stream.spark, stream.root / "other", stream.settings)
    other.root.mkdir()
    other.add_batches(1)
    with pytest.raises(CheckpointLocationError, match="job log is of query_id="):
        other.run()
    assert other.delivered == []
