"""``sk.doctor`` in a real session with executors, with and without a job."""

from pathlib import Path

import pytest
from pages_kit import block
from pyspark.sql import SparkSession

import statekeep as sk

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(120)]


def test_it_looks_at_the_session_its_executors_and_a_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    bare = {check.what: check for check in sk.doctor(spark).checks}
    assert bare["spark.speculation"].status == "ok"
    assert bare["secrets in the Spark conf"].status == "ok"
    assert bare["tasks"].found.startswith("4 for a new job")
    assert bare["executors"].status == "ok"
    assert any(what.startswith("local disk on ") for what in bare)
    assert bare["backends"].remedy
    settings = {"job.name": "orders", "task.replay.max.batches": "1000"}
    location = str(tmp_path / "checkpoint")
    found = sk.doctor(spark, settings, checkpoint_location=location)
    of_job = {check.what: check for check in found.checks}
    assert of_job["spark.sql.streaming.minBatchesToRetain"].status == "fail"
    assert of_job["backend blob"].status == "ok"
    assert of_job["job log in blob"].found == "there is none here"
    assert not found.is_sound
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_setting_that_is_wrong_is_a_line(spark: SparkSession) -> None:
    last = sk.doctor(spark, {"no.such.key": "1"}).checks[-1]
    assert (last.what, last.status) == ("settings", "fail")
    assert "no.such.key" in last.found


def test_the_program_of_the_page_prints_what_it_finds(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.properties").write_text("job.name = orders\n", encoding="utf-8")
    program = block("docs/how-to/operate.md", "Find out what is wrong", "python")
    exec(program.replace("s3a://bucket", str(tmp_path)), {"sk": sk, "spark": spark})  # noqa: S102 - a program of the docs
    assert "ok    backend blob: answers" in capsys.readouterr().out
