"""The flights demo by ``spark-submit`` on a Spark cluster: how the package gets there, what may be lost."""

import json
import os
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pages_kit import ROOT, blocks
from servers.process import required
from servers.process_tree import descendants
from servers.spark_cluster import SPARK_HOME, spark_cluster
from servers.yarn import yarn_cluster

from examples.flights import check
from examples.flights.data import ensure_flights
from examples.flights.events import Event, EventReader
from examples.flights.paths import Paths

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

BATCHES = 12


PAGE = "docs/how-to/cluster.md"
WAYS = ["installed", "environment", "archive", "yarn"]
"""What the commands on the page show, in their order."""


@pytest.fixture(scope="module")
def flights() -> Path:
    return ensure_flights(ROOT / ".cache", BATCHES)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(directory), str(ROOT))
    return next(directory.glob("*.whl"))


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a cluster's hosts: it has what PySpark needs, and nothing of ours."""
    directory = tmp_path_factory.mktemp("hosts") / "python"
    subprocess.run([sys.executable, "-m", "venv", "--copies", str(directory)], check=True)
    python = directory / "bin" / "python"
    pip(str(python), "install", "pyarrow", "pandas<3")
    return python


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package ``examples`` for ``--py-files``."""
    path = tmp_path_factory.mktemp("ours") / "examples.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((ROOT / "examples").rglob("*.py")):
            archive.write(file, file.relative_to(ROOT))
    return path


@pytest.fixture
def paths(flights: Path, tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "work", flights)
    made.work.mkdir()
    return made


@pytest.mark.parametrize("way", ["installed", "environment", "archive"])
def test_a_job_on_a_standalone_cluster_survives_the_loss_of_an_executor_and_of_a_host(
    way: str, wheel: Path, ours: Path, paths: Paths, request: pytest.FixtureRequest
) -> None:
    settings = {} if way == "environment" else {"spark.pyspark.python": sys.executable}
    if way == "archive":
        settings["spark.pyspark.python"] = str(request.getfixturevalue("bare_python"))
    with required(spark_cluster(3)) as cluster:
        script = script_of(way, wheel, ours, paths, settings)
        losses = [cluster.workers[0].kill_executor, cluster.workers[1].lose]
        with submitted(script.replace("spark://master:7077", cluster.uri), paths) as job:
            check_run(job, paths, losses)


def test_a_job_whose_driver_runs_on_yarn_survives_the_loss_of_an_executor(
    wheel: Path, ours: Path, paths: Paths
) -> None:
    settings = {
        "spark.executor.instances": "2",
        "spark.executorEnv.LOGGED_STORE_BASE_DIR": str(paths.local),
        "spark.yarn.stagingDir": f"{paths.work.as_uri()}/staging",
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
    }
    with required(yarn_cluster(2)) as cluster:
        # The page makes the environment where it first needs one.
        made = script_of("environment", wheel, ours, paths, {}).partition("spark-submit")[0]
        script = made + script_of("yarn", wheel, ours, paths, settings)
        with submitted(script, paths, HADOOP_CONF_DIR=str(cluster.configuration)) as job:
            check_run(job, paths, [cluster.kill_executor])


def script_of(way: str, wheel: Path, ours: Path, paths: Paths, settings: dict[str, str]) -> str:
    """Return the commands of the page for one way, with this wheel and the demo's program in them."""
    text = blocks(PAGE, "Give executors the package", "bash")[WAYS.index(way)]
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "900m",
        **settings,
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    options = ["spark-submit", "--py-files", str(ours), *options]
    program = [ROOT / "examples/flights/job.py", paths.work, paths.flights, 1, "submitted"]
    for printed, given in [
        ("'.[s3]'", f"-q {wheel}"),
        ("spark-submit", shlex.join(options)),
        ("job.py", shlex.join(map(str, program))),
    ]:
        text = text.replace(printed, given)
    return text


def check_run(
    job: "subprocess.Popen[bytes]", paths: Paths, losses: Sequence[Callable[[], None]]
) -> None:
    """Bring about losses while the job runs; compare what it leaves with a query of plain Spark."""
    loss_after = dict(zip([3, 7], losses, strict=False))
    events: list[Event] = []
    for event in followed(job, paths):
        events.append(event)
        if event["kind"] == "delivered" and event["batch"] in loss_after:
            loss_after.pop(event["batch"])()
    assert not loss_after
    delivered = [event["batch"] for event in events if event["kind"] == "delivered"]
    assert set(delivered) == set(range(BATCHES))
    assert check.contradictions(events) == []
    compared = subprocess.run(
        [sys.executable, "-m", "examples.flights.check", str(paths.work), str(paths.flights)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    for comparison in json.loads(compared.stdout):
        assert (comparison["missing"], comparison["surplus"]) == ([], [])


@contextmanager
def submitted(
    script: str, paths: Paths, **environment: str
) -> Generator["subprocess.Popen[bytes]"]:
    """Run the commands of a script in the directory of the run; the last one becomes the process."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    path = [str(SPARK_HOME / "bin"), str(Path(sys.executable).parent), kept["PATH"]]
    kept |= {"PATH": os.pathsep.join(path), "SPARK_LOCAL_IP": "127.0.0.1"}
    with paths.log("job").open("wb") as log:
        job = subprocess.Popen(
            ["bash", "-ec", script],
            cwd=paths.work,
            env={**kept, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield job
    finally:
        for pid in [*descendants(job.pid), job.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.wait()


def followed(job: "subprocess.Popen[bytes]", paths: Paths) -> Iterator[Event]:
    """Yield what the job tells until it ends well."""
    reader = EventReader(paths.events)
    code: int | None = None
    while code is None:
        with suppress(subprocess.TimeoutExpired):
            code = job.wait(0.1)
        yield from reader.read()
    assert code == 0, paths.log("job").read_text(errors="replace")[-6000:]


def pip(python: str, *arguments: str) -> None:
    subprocess.run(
        [python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True
    )
