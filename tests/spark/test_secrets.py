"""Where secrets of a job on Spark are not: files, logs, Spark's event log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Stream

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

GIVEN = "Zq9given"
OF_CONF = "Zq8ofconf"


def run_job(root: Path, pattern: str = "") -> subprocess.CompletedProcess[str]:
    (root / "events").mkdir()
    here = Path(__file__).parent
    return subprocess.run(
        [sys.executable, "-m", "secret_job", str(root), GIVEN, OF_CONF, pattern],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_no_file_and_no_line_of_a_job_on_spark_holds_its_secrets(stream: Stream) -> None:
    stream.add_batches(2)
    result = run_job(stream.root)
    assert result.returncode == 0, result.stderr[-3000:]
    files = [path for path in stream.root.rglob("*") if path.is_file()]
    events = [path for path in files if stream.root / "events" in path.parents]
    assert any(b"azure.proxy" in path.read_bytes() for path in events)
    for secret in (GIVEN, OF_CONF):
        assert secret not in result.stdout + result.stderr
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert "process list: keys=spark.statekeep.blob.store.azure.proxy" in result.stderr


def test_a_secret_that_the_session_would_show_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    result = run_job(stream.root, "(?i)nothing-of-ours")
    assert result.returncode == 1
    assert "show secrets: keys=spark.statekeep.blob.store.azure.proxy" in result.stderr
    assert OF_CONF not in result.stderr
