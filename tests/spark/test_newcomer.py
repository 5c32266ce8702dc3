"""A newcomer's hour: from the wheel to a job of one's own on default settings, a crash, a restore.

As a script on a terminal, in a notebook, and with the mistakes that come first. No setting is given
but the checkpoint location, and that one is relative.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from newcomer_kit import (
    Terminal,
    environment,
    install,
    lose_local_disk,
    pip_install,
    without_daemon,
)
from pages_kit import block

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

NOTEBOOK = ("nbclient==0.11.0", "ipykernel==7.4.0")
USERS = "abc"
PROCESSOR = """
import json
import statekeep as sk
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Visits(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n long")
        self.pages = handle.getMapState("pages", "page string", "hits long")

    def handleInputRows(self, key, rows, timerValues):
        count = (self.count.get() or (0,))[0]
        for row in rows:
            count += 1
            hits = (self.pages.getValue((row.page,)) or (0,))[0]
            self.pages.updateValue((row.page,), (hits + 1,))
        self.count.update((count,))
        yield Row(user=key[0], visits=count, pages=sum(1 for _ in self.pages.keys()))

    def close(self):
        pass


def write(frame, batch):
    with open("out.jsonl", "a") as out:
        for row in frame.collect():
            print(json.dumps({"batch": batch, **row.asDict()}), file=out)


spark = sk.session_builder("local[2]").getOrCreate()
visits = spark.readStream.schema("user string, page string").json("in")
out = sk.grouped(visits.groupBy("user")).transformWithState(
    Visits(), "user string, visits long, pages long", "Update", "None"
)
"""
START = """
query = out.writeStream.foreachBatch(write).option("checkpointLocation", "cp").start()
"""
WAIT = "query.awaitTermination()\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("machine"))


class Job:
    """The directory of a newcomer: its input, its program, what it has delivered."""

    def __init__(self, directory: Path, python: Path) -> None:
        self.directory = directory
        self.python = python
        self.visits = 0
        (directory / "in").mkdir()
        (directory / "job.py").write_text(PROCESSOR + START + WAIT)

    def visit(self) -> None:
        """Let each user visit another page."""
        self.visits += 1
        rows = [{"user": user, "page": f"p{self.visits}"} for user in USERS]
        hidden = self.directory / "in" / f".{self.visits}"
        hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        hidden.rename(self.directory / "in" / f"{self.visits}.json")

    def delivered(self) -> list[dict[str, Any]]:
        path = self.directory / "out.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def is_delivered(self) -> bool:
        """Whether the sink has all visits, and Spark has ended their batch."""
        rows = self.delivered()
        newest = {row["user"]: row["visits"] for row in rows}
        return (
            newest == dict.fromkeys(USERS, self.visits)
            and (self.directory / "cp" / "commits" / str(rows[-1]["batch"])).exists()
        )

    def check_delivered(self) -> None:
        """Check that users have exactly their visits, and that a repeated batch was the same."""
        batches: dict[int, dict[str, tuple[int, int]]] = {}
        for row in self.delivered():
            counts = (row["visits"], row["pages"])
            assert counts[0] == counts[1]  # each visit was to a page of its own
            assert batches.setdefault(row["batch"], {}).setdefault(row["user"], counts) == counts
        newest = batches[max(batches)]
        assert newest == dict.fromkeys(USERS, (self.visits, self.visits))

    def command(self, line: str) -> str:
        """Run a command of the wheel's own script in the newcomer's shell."""
        words = [str(self.python.parent / "statekeep"), *line.split()]
        done = subprocess.run(
            words,
            cwd=self.directory,
            env=environment(self.directory),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def job(tmp_path: Path, python: Path) -> Job:
    return Job(tmp_path, python)


@pytest.fixture
def run(job: Job) -> Iterator[Callable[[], Terminal]]:
    """Start the program on a terminal; all of them are gone at the end."""
    terminals: list[Terminal] = []

    def start() -> Terminal:
        terminals.append(Terminal(job.python, "job.py", job.directory))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_a_script_is_exact_after_a_kill_and_the_loss_of_the_disk_and_says_what_it_does(
    job: Job, run: Callable[[], Terminal]
) -> None:
    job.visit()
    first = run()
    first.wait_until(job.is_delivered)
    first.press_ctrl_c()
    (begun,) = first.lines("a new job begins: ")
    assert "tasks=32 backends=blob" in begun
    assert len(first.lines("the query is started: ")) == 1
    assert len(first.lines("Ctrl-C: what was delivered is committed first")) == 1
    assert "batch=0" in "".join(first.lines("commit is durable: ")[-1:]), first.text
    assert "Traceback" not in without_daemon(first.text)

    job.visit()
    second = run()
    second.wait_until(job.is_delivered)
    assert len(second.lines("the job goes on: ")) == 1
    second.kill()
    lose_local_disk(job.directory)

    job.visit()
    third = run()
    third.wait_until(job.is_delivered)
    (restored,) = third.lines("state is restored: ")
    assert "tasks=3 of=32 sources=blob bytes=" in restored
    (replayed,) = third.lines("batches are replayed, without output: ")
    assert replayed.endswith("first=1 last=1 rows=3")
    assert "restore_s=" in third.lines("the query is started: ")[0]
    third.press_ctrl_c()
    job.check_delivered()
    assert "py4j" not in first.text + second.text + third.text
    shown = [line.partition(" statekeep: ")[2] for line in third.text.splitlines()]
    for line in block("docs/start.md", "A first crash", "text").splitlines():
        begin = re.split(r"=|\d", line.removeprefix("INFO statekeep: "))[0]
        assert any(text.startswith(begin) for text in shown), (begin, shown)

    rows = json.loads(job.command("state read count --location cp --json"))
    assert {row["key"]["user"]: row["value"]["n"] for row in rows} == dict.fromkeys(USERS, 3)
    assert "batch" in job.command("checkpoints list --location cp")


NOTEBOOK_STATE = """
import os
settings = {
    "job.name": "visits",
    "stores.state.backup.factories": "blob",
    "blob.store.uri": os.path.abspath("cp-statekeep"),
}
rows = sk.read_state(settings, "count").to_pylist()
print(sorted((row["key"]["user"], row["value"]["n"]) for row in rows))
sk.register(spark)
frame = spark.read.format("statekeep").option("stateVarName", "count").load("cp")
print(sorted((row.key.user, row.value.n) for row in frame.collect()))
"""
NOTEBOOK_RUN = """
query = (
    out.writeStream.queryName("visits").foreachBatch(write).option("checkpointLocation", "cp").start()
)
query.processAllAvailable()
print("newest batch:", query.lastProgress["batchId"])
query.explain()
"""
NOTEBOOK_KILL = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
RUNNER = '''
"""Runs cells in a kernel, as Jupyter does; prints what each of them shows."""

import json
import sys

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

cells = [nbformat.v4.new_code_cell(text) for text in json.load(open(sys.argv[1]))]
notebook = nbformat.v4.new_notebook(cells=cells)
try:
    NotebookClient(notebook, timeout=180, kernel_name="python3").execute()
except DeadKernelError:
    pass
json.dump(
    ["".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells],
    open(sys.argv[2], "w"),
)
'''


def run_cells(job: Job, *cells: str) -> list[str]:
    """Run cells in a fresh kernel; return the text that each has shown."""
    (job.directory / "cells.json").write_text(json.dumps(cells))
    (job.directory / "notebook.py").write_text(RUNNER)
    subprocess.run(
        [str(job.python), "notebook.py", "cells.json", "shown.json"],
        cwd=job.directory,
        env=environment(job.directory),
        check=True,
        timeout=400,
    )
    shown: list[str] = json.loads((job.directory / "shown.json").read_text())
    return shown


def test_a_notebook_is_exact_after_its_kernel_was_killed_and_the_disk_lost(job: Job) -> None:
    pip_install(job.python, *NOTEBOOK)
    job.visit()
    shown = "".join(run_cells(job, PROCESSOR, NOTEBOOK_RUN, "query.stop()", NOTEBOOK_STATE))
    assert "statekeep: a new job begins: job=visits tasks=32 backends=blob" in shown, shown
    assert "statekeep: the query is started: " in shown
    assert "newest batch: 0\n" in shown
    assert (
        "== Stateful operator ==\nVisits by statekeep, keys: [user], output: [user string" in shown
    )
    assert shown.count(str([(user, 1) for user in USERS])) == 2, shown

    job.visit()
    run_cells(job, PROCESSOR, NOTEBOOK_RUN, NOTEBOOK_KILL)
    assert job.is_delivered()
    lose_local_disk(job.directory)

    job.visit()
    shown = "".join(run_cells(job, PROCESSOR, NOTEBOOK_RUN, "query.stop()", NOTEBOOK_STATE))
    assert "statekeep: state is restored: tasks=3 of=32 sources=blob bytes=" in shown, shown
    assert "statekeep: batches are replayed, without output: first=1 last=1 rows=3" in shown
    assert shown.count(str([(user, 3) for user in USERS])) == 2, shown
    job.check_delivered()


MISTAKES = """
SCHEMA = "user string, visits long, pages long"
spark.sparkContext.setLogLevel("OFF")


class NoYield(Visits):
    def handleInputRows(self, key, rows, timerValues):
        self.count.update((1,))


class WrongColumn(Visits):
    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            yield Row(user=row.usr, visits=1, pages=1)


class WrongType(Visits):
    def handleInputRows(self, key, rows, timerValues):
        yield Row(user=key[0], visits="one", pages=1)


class NoTuple(Visits):
    def handleInputRows(self, key, rows, timerValues):
        self.count.update(1)
        yield Row(user=key[0], visits=1, pages=1)


class Ending(Visits):
    def init(self, handle):
        super().init(handle)
        self.last = handle.getValueState("last", "page string", 60_000)


class Renamed(Visits):
    def init(self, handle):
        self.count = handle.getValueState("count", "n long")
        self.pages = handle.getMapState("seen", "page string", "hits long")


def run(name, processor=None, settings=None, key="user", mode="Update", time_mode="None"):
    if settings != "job.toml":
        settings = {"task.count": 2, **(settings or {})}
    grouped = sk.grouped(visits.groupBy(key), settings)
    out = grouped.transformWithState(processor or Visits(), SCHEMA, mode, time_mode)
    writer = out.writeStream.foreachBatch(lambda frame, batch: frame.collect())
    query = writer.option("checkpointLocation", name).trigger(availableNow=True).start()
    query.awaitTermination()


def at(uri):
    return {"stores.state.backup.factories": "blob", "blob.store.uri": uri}


def second_start():
    grouped = sk.grouped(visits.groupBy("user"), {"task.count": 2})
    out = grouped.transformWithState(Visits(), SCHEMA, "Update", "None")
    writer = out.writeStream.foreachBatch(lambda frame, batch: None)
    first = writer.option("checkpointLocation", "twice").start()
    second = writer.option("checkpointLocation", "twice").start()
    second.processAllAvailable()
    second.stop()
    first.awaitTermination(60)  # it may have had all rows already, and sees then that it is replaced


def other_key():
    run("shared", key="user")
    run("shared", key="page")


def settings_file():
    with open("job.toml", "w") as file:
        print('job.name = "from-toml"', "task.count = 2", sep=chr(10), file=file)
    run("n", settings="job.toml")
    run("n", settings={"job.name": "other"})


def renamed_map():
    run("o")
    with open("in/more.json", "w") as file:
        file.write('{"user": "a", "page": "more"}')
    run("o", Renamed())


shown = {}
for name, mistake in {
    "no yield": lambda: run("a", NoYield()),
    "column": lambda: run("b", WrongColumn()),
    "type": lambda: run("c", WrongType()),
    "no tuple": lambda: run("d", NoTuple()),
    "class": lambda: run("e", Visits),
    "mode": lambda: run("f", mode="Complete"),
    "setting": lambda: run("g", settings={"task.comit.ms": "5s"}),
    "value": lambda: run("h", settings={"task.commit.ms": "often"}),
    "backend": lambda: run("i", settings={"stores.state.backup.factories": "near"}),
    "scheme": lambda: run("j", settings=at("s4://bucket/x")),
    "relative": lambda: run("k", settings=at("backup")),
    "credentials": lambda: run("l", settings=at("s3://bucket/x")),
    "second start": second_start,
    "other key": other_key,
    "ttl": lambda: run("p", Ending()),
    "no watermark": lambda: run("q", time_mode="EventTime"),
    "settings file": settings_file,
    "renamed map": renamed_map,
    "no state": lambda: sk.read_state("nothing.properties", "count"),
}.items():
    try:
        mistake()
        shown[name] = "no error"
    except Exception as error:
        shown[name] = f"{type(error).__name__}: {error}"
with open("mistakes.json", "w") as file:
    json.dump(shown, file)
"""
SAID = {
    "no yield": ["rows of the output are not iterable: found=NoneType", "yield each row"],
    "column": ["Attribute `usr`", "while processing grouping key", "job.py", "row.usr"],
    "type": ["output does not fit the declared type: column=visits", "'one'"],
    "no tuple": ["value does not fit the state variable: variable=count", "self.count.update(1)"],
    "class": ["the processor is a class: class=Visits", "give an object of it: Visits()"],
    "mode": ["output mode is not supported", "use Update or Append"],
    "setting": ["unknown setting: key=task.comit.ms", "did you mean task.commit.ms?"],
    "value": ["task.commit.ms must be", "value='often'"],
    "backend": ["unknown backend: name=near", "backends.near.factory"],
    "scheme": ["root=s4://bucket/x", "is the scheme right"],
    "relative": ["the location of a backend must be absolute: backend=blob uri=backup"],
    "credentials": ["bucket=bucket", "hint: Unable to locate credentials"],
    "second start": ["another driver has taken over this job"],
    "other key": ["the job cannot go on with another grouping key", "page:string"],
    "ttl": ["ConfigError: ", "ttlDurationMs needs processing time: variable=last timeMode=None"],
    "no watermark": ["ConfigError: ", "withWatermark"],
    "settings file": ["CheckpointLocationError: ", "the job's name is 'other'"],
    "renamed map": ["no error"],
    "no state": ["cannot read the settings: path=nothing.properties"],
}


def test_the_first_mistakes_are_errors_that_say_what_to_do(
    job: Job, run: Callable[[], Terminal]
) -> None:
    job.visit()
    (job.directory / "job.py").write_text(PROCESSOR + MISTAKES)
    program = run()
    assert program.status(timeout_s=300) == 0, program.text
    shown = json.loads((job.directory / "mistakes.json").read_text())
    assert shown.keys() == SAID.keys()
    for name, words in SAID.items():
        # What went wrong stands in the first lines, Spark's own text behind.
        first = "\n".join(shown[name].splitlines()[:8])
        for word in words:
            assert word in first, (name, shown[name][:2000])
    failed = [line for line in program.text.splitlines() if "the query has failed" in line]
    assert any("rows of the output are not iterable" in line for line in failed), failed
    (renamed,) = program.lines("the state holds variables that the processor does not declare")
    assert renamed.endswith("variables=pages")
