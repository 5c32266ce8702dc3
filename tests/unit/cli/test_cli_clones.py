"""``statekeep clone``, ``clone promote`` and ``clone drop``, and the page about them."""

import asyncio
import base64
import shlex
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli_kit import CommandLine, Result, job_settings
from killed_command_kit import kill
from pages_kit import block, commands
from spark_job_kit import BATCH, CONTENT, IN_STORES, ONE_STORE, make_job, settings

import statekeep as sk
from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.inspection.new_job import begin_job

PAGE = "docs/how-to/clone.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    asyncio.run(make_job(directory))
    return directory


@pytest.fixture
def job(made: Path, tmp_path: Path) -> dict[str, str]:
    """The settings of a copy of the job, which one test may change, with the location of its query."""
    shutil.copytree(made / "place", tmp_path / "place")
    location = tmp_path / "counts"
    for name in ("offsets", "commits", "sources/0"):
        (location / name).mkdir(parents=True)
    for batch in range(BATCH + 3):  # it has gone on
        for name in ("offsets", "commits", "sources/0"):
            (location / name / str(batch)).write_text("v1")
    (location / "metadata").write_text('{"id":"q"}')
    return settings(tmp_path)


@pytest.fixture
def statekeep(
    job: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> CommandLine:
    config = tmp_path / "job.properties"
    config.write_text("".join(f"{key}={text}\n" for key, text in job.items()))
    return CommandLine(config, monkeypatch, capsys)


def counts(job: dict[str, str], name: str) -> dict[str, int]:
    rows = sk.read_state(job | {"job.name": name}, "count").to_pylist()
    return {row["key"]["user"]: row["value"]["n"] for row in rows}


def put(job: dict[str, str], name: str, user: str, n: int) -> None:
    rows = pa.table({"key": [user], "value": [n]})
    sk.write_state(job | {"job.name": name}, "count", rows, reason="test")


def pins(statekeep: CommandLine) -> list[str]:
    return [row["savepoint"] for row in statekeep("savepoint list --json").json]


def backups(directory: Path, name: str) -> set[Path]:
    found = (directory / "place" / name).glob("state-*/**/*")
    return {path for path in found if path.is_file()}


def making(directory: Path, name: str = "copy") -> str:
    return (
        f"clone counts --as {name} --from-location {directory}/counts"
        f" --to-location {directory}/{name}"
    )


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_page_does_what_it_says(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def given(heading: str) -> list[Result]:
        lines = [
            line.replace("/mnt/checkpoints", str(tmp_path)) for line in commands(PAGE, heading)
        ]
        bare = [line.replace("--config job.properties", "") for line in lines]
        return [statekeep(shlex.join(shlex.split(line)[1:])) for line in bare]

    names: dict[str, Any] = {}
    exec(block(PAGE, "", "python"), names)  # noqa: S102 - a page of ours
    assert names["settings"].keys() == job.keys() - {"job.logged.store.base.dir"}
    names["settings"] = job
    program = block(PAGE, "Make a clone", "python").replace("/mnt/checkpoints", str(tmp_path))
    exec(program, names)  # noqa: S102 - a page of ours
    assert capsys.readouterr().out == "counts-new begins after batch 5 of counts\n"
    assert [done.status for done in given("Make a clone")] == [0]
    assert [pin.rpartition(":")[0] for pin in pins(statekeep)] == [
        "clone:counts-new",
        "clone:counts-test",
    ]
    shown = statekeep("checkpoints show --set job.name=counts-new")
    assert f"shares commit 2 of counts, pinned as {pins(statekeep)[0]}\n" in shown.out
    put(job, "counts-new", "user-7", 70)
    assert counts(job, "counts-new") == CONTENT | {"user-7": 70}
    assert counts(job, "counts") == counts(job, "counts-test") == CONTENT
    assert [done.status for done in given("Promote it")] == [0]
    assert [done.status for done in given("Drop it")] == [0]
    assert pins(statekeep) == []
    assert statekeep("reset --yes").status == 0
    assert counts(job, "counts-new") == CONTENT | {"user-7": 70}


def test_the_clone_gets_the_location_up_to_the_commit(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path
) -> None:
    made = statekeep(f"{making(tmp_path)} --json").json
    assert (made["job"], made["batch"], made["origin"]) == ("copy", BATCH, "counts")
    batches = range(BATCH + 1)
    assert files(tmp_path / "copy") == {
        "metadata",
        *(f"{name}/{batch}" for name in ("offsets", "commits") for batch in batches),
        *(f"sources/0/{batch}" for batch in range(BATCH + 3)),
    }
    assert (tmp_path / "copy" / "metadata").read_text() != '{"id":"q"}'
    assert statekeep("clone --help", has_config=False).status == 0
    assert statekeep("clone --as copy3 counts").out.startswith("job copy3 is a clone of counts")
    shown = statekeep(f"{making(tmp_path, 'copy2')}").out
    assert shown.startswith(f"job copy2 is a clone of counts at commit {made['origin-commit']}")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("clone counts --as copy --at 77", "no such commit: commit=77"),
        ("clone counts --as counts", "the clone needs a name of its own"),
        ("clone count --as copy", "the job has no log here: job=count"),
        ("clone counts --as other", "there is a job of that name: job=other"),
        ("clone counts --as copy --to-location /tmp/x", "are given together or not at all"),
        ("clone promote counts", "the job is no clone"),
        ("clone drop counts --yes", "the job is no clone"),
        ("clone drop copy --yes", "there is no job of that name: job=copy"),
        ("clone drop copy --lost --yes", "the job has no such clone: job=counts clone=copy"),
        ("checkpoints pin clone:copy", "no commit can be kept under this name"),
    ],
)
def test_what_is_wrong_changes_nothing(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path, line: str, shown: str
) -> None:
    asyncio.run(make_job(tmp_path, ONE_STORE, **{"job.name": "other"}))
    before = files(tmp_path / "place")
    done = statekeep(line)
    assert shown in " ".join(done.err.split())
    assert (done.status, done.out) == (2, "")
    assert files(tmp_path / "place") == before


def test_a_job_in_plain_python_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_settings(tmp_path) | {"job.name": "counts"}
    config = tmp_path / "job.properties"
    config.write_text("".join(f"{key}={text}\n" for key, text in job.items()))
    commit = CommitRecord(
        attempt_epoch=0,
        attempt=0,
        batch=-1,
        checkpoint_id="1-1",
        identity=JobIdentity(job_uid="", job_name="", partitions=1, stores={"main": ["counts"]}),
    )

    async def make() -> None:
        made = begin_job(load_dict(job), commit, SystemClock(), owner="test", partitions=1)
        async with made as new:
            await new.finish(None)

    asyncio.run(make())
    done = CommandLine(config, monkeypatch, capsys)("clone counts --as copy")
    assert "only a commit of a query on Spark can be cloned: job=counts" in done.err


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_state_in_several_stores_is_shared(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path
) -> None:
    both = {
        "job.name": "both",
        "stores.large.backup.factories": "blob",
        "state.variables.seen.store": "large",
    }
    asyncio.run(make_job(tmp_path, IN_STORES, **both))
    settings = " ".join(f"--set {name}={text}" for name, text in both.items())
    assert statekeep(f"clone both --as copy {settings}").status == 0
    copy = job | both | {"job.name": "copy"}
    for variable in ("count", "seen"):
        rows = sk.read_state(copy, variable).to_pylist()
        assert {row["key"]["user"]: row["value"]["n"] for row in rows} == CONTENT
    assert statekeep(f"clone promote copy {settings}").status == 0
    rows = sk.read_state(copy, "seen").to_pylist()
    assert {row["key"]["user"]: row["value"]["n"] for row in rows} == CONTENT


def test_a_location_that_is_in_use_is_not_touched(statekeep: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "metadata").write_text("mine")
    before = files(tmp_path / "place")
    done = statekeep(making(tmp_path))
    assert "the new checkpoint location is in use" in done.err
    assert files(tmp_path / "copy") == {"metadata"}
    assert files(tmp_path / "place") == before


def test_a_name_is_not_given_twice(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path
) -> None:
    assert statekeep(making(tmp_path)).status == 0
    put(job, "copy", "user-7", 70)
    again = statekeep(making(tmp_path))
    assert "there is a job of that name, a clone of counts: job=copy" in " ".join(again.err.split())
    assert counts(job, "copy") == CONTENT | {"user-7": 70}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nothing_gives_up_what_a_clone_uses(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path
) -> None:
    assert statekeep(making(tmp_path)).status == 0
    (pin,) = pins(statekeep)
    before, events = backups(tmp_path, "counts"), statekeep("events --json").json
    for line in (
        f"savepoint drop {pin}",
        f"checkpoints unpin {pin}",
        "reset --yes --with-savepoints",
        "state erase --key user-7 --reason r --yes --drop-savepoints",
    ):
        refused = statekeep(line)
        told = " ".join(refused.err.split())
        assert "a clone uses the backups of the commit: clones=copy" in told
        assert "`statekeep clone promote copy`" in told
        assert refused.status == 2
        assert statekeep("events --json").json == events
    put(job, "counts", "user-7", 70)
    put(job, "counts", "user-8", 80)
    commit = statekeep("checkpoints list --json").json[0]["commit"]
    refused = statekeep(f"checkpoints remove {commit} --yes")
    assert "a clone uses the backups of the commit: clones=copy" in " ".join(refused.err.split())
    assert statekeep("gc").status == 0
    assert backups(tmp_path, "counts") >= before
    assert pins(statekeep) == [pin]
    assert statekeep("verify --set job.name=copy").status == 0
    assert counts(job, "copy") == CONTENT


def test_a_damaged_log_is_not_reset_by_accident_where_a_clone_may_be(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path
) -> None:
    assert statekeep(making(tmp_path)).status == 0
    record = next(
        path
        for path in (tmp_path / "place" / "counts" / "log").iterdir()
        if b" clone-pin " in path.read_bytes()
    )
    record.write_bytes(record.read_bytes()[:-3])
    refused = statekeep("reset --yes")
    assert "keeps a commit for a clone is damaged" in " ".join(refused.err.split())
    assert counts(job, "copy") == CONTENT
    assert statekeep("reset --yes --with-savepoints").status == 0


def test_a_clone_whose_log_is_lost_is_let_go_by_its_origin(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    assert statekeep(making(tmp_path)).status == 0
    shutil.rmtree(tmp_path / "place" / "copy")
    told = statekeep("clone drop copy --yes").err
    assert "give --lost" in " ".join(told.split())
    done = statekeep("clone drop copy --lost --yes")
    assert done.out.endswith("is no pin of counts any more\n")
    assert pins(statekeep) == []


def test_a_commit_with_a_savepoint_is_not_promoted_away(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    assert statekeep(making(tmp_path)).status == 0
    assert statekeep("savepoint create v1 --live --set job.name=copy").status == 0
    refused = statekeep("clone promote copy")
    assert "are kept under names: names=v1" in " ".join(refused.err.split())
    assert "--with-savepoints" in statekeep("clone drop copy --yes").err
    done = statekeep("clone drop copy --yes --with-savepoints --json")
    assert done.json == {"dropped": "copy"}
    assert pins(statekeep) == []


@pytest.mark.parametrize(
    ("others", "shown"),
    [
        (
            {
                "stores.backup.factories": "far",
                "backends.far.factory": "hdfs",
                "backends.far.uri": "file://{directory}/far",
            },
            "state that only backends hold whose backups cannot be shared",
        ),
        (
            {
                "blob.store.encryption": "aes-256-gcm",
                "blob.store.encryption.keys": "file:{directory}/keys",
            },
            "a job that encrypts its state cannot be cloned",
        ),
    ],
    ids=["hdfs", "encrypted"],
)
def test_state_that_cannot_be_shared_is_refused(
    statekeep: CommandLine, tmp_path: Path, others: dict[str, str], shown: str
) -> None:
    key = base64.b64encode(bytes(32)).decode()
    (tmp_path / "keys").write_text(f"k {key}")
    (tmp_path / "keys").chmod(0o600)
    given = {name: text.format(directory=tmp_path) for name, text in others.items()}
    given |= {"job.name": "special", "blob.store.uri": (tmp_path / "special").as_uri()}
    asyncio.run(make_job(tmp_path, ONE_STORE, **given))
    before = files(tmp_path)
    settings = " ".join(f"--set {name}={text}" for name, text in given.items())
    refused = statekeep(f"clone special --as copy {settings}")
    assert shown in " ".join(refused.err.split())
    assert refused.status == 2
    assert files(tmp_path) == before


def test_a_commit_in_two_backends_is_cloned_by_the_one_that_can_share(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    given = {
        "job.name": "both",
        "stores.backup.factories": "blob,far",
        "backends.far.factory": "hdfs",
        "backends.far.uri": (tmp_path / "far").as_uri(),
    }
    asyncio.run(make_job(tmp_path, ONE_STORE, **given))
    settings = " ".join(f"--set {name}={text}" for name, text in given.items())
    assert statekeep(f"clone both --as copy {settings}").status == 0
    (commit,) = statekeep("checkpoints list --json --set job.name=copy").json
    assert commit["backends"] == ["blob"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_dropped", [False, True], ids=["again", "dropped"])
@pytest.mark.parametrize(
    "point",
    ["clone.before_pins", "clone.after_pins", "clone.before_record", "clone.after_record"],
)
def test_a_clone_that_was_killed_is_completed_or_cleared_away(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path, point: str, *, is_dropped: bool
) -> None:
    kill(statekeep, making(tmp_path), point)
    assert counts(job, "counts") == CONTENT
    if is_dropped:
        assert statekeep("clone drop copy --yes").status == 0
        assert pins(statekeep) == []
        return
    assert statekeep(making(tmp_path)).status == 0
    assert len(pins(statekeep)) == 1
    assert counts(job, "copy") == CONTENT
    assert "metadata" in files(tmp_path / "copy")
    assert ".statekeep-clone" not in files(tmp_path / "copy")
    put(job, "copy", "user-7", 70)
    assert counts(job, "copy") == CONTENT | {"user-7": 70}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "point",
    [
        "restore.before_fetch",
        "upload.before_index",
        "commit_record.before",
        "commit_record.after",
        "clone.before_release",
        "clone.before_unpin",
        "clone.before_last_record",
    ],
)
def test_a_promotion_that_was_killed_is_ended_by_the_same_command(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path, point: str
) -> None:
    assert statekeep(making(tmp_path)).status == 0
    put(job, "copy", "user-7", 70)
    expected = CONTENT | {"user-7": 70}
    kill(statekeep, "clone promote copy", point)
    assert counts(job, "copy") == expected
    assert statekeep("clone promote copy").status == 0
    assert pins(statekeep) == []
    assert statekeep("reset --yes").status == 0
    assert backups(tmp_path, "counts") == set()
    assert counts(job, "copy") == expected


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", ["clean_up.before_files", "clone.before_unpin"])
def test_a_drop_that_was_killed_is_ended_by_the_same_command(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path, point: str
) -> None:
    assert statekeep(making(tmp_path)).status == 0
    put(job, "copy", "user-7", 70)
    kill(statekeep, "clone drop copy --yes", point)
    assert len(pins(statekeep)) == 1
    assert statekeep("clone drop copy --yes").status == 0
    assert pins(statekeep) == []
    assert backups(tmp_path, "copy") == set()
    assert counts(job, "counts") == CONTENT


def test_calls_that_are_wrong_raise_config_errors(job: dict[str, str]) -> None:
    with pytest.raises(sk.ConfigError, match="are given together or not at all"):
        sk.clone(job, "copy", from_location="/mnt/checkpoints/counts")
    with pytest.raises(sk.ConfigError, match="no such commit: commit=77"):
        sk.clone(job, "copy", at="77")
    with pytest.raises(sk.ConfigError, match="the job has no log here: job=copy"):
        sk.promote_clone(job, "copy")
    with pytest.raises(sk.ConfigError, match="there is no job of that name: job=copy"):
        sk.drop_clone(job, "copy")


def test_the_location_of_a_query_without_settings_says_where_its_job_is(
    statekeep: CommandLine, job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "place").rename(tmp_path / "counts-statekeep")
    where = f"--location {tmp_path}/counts --to-location {tmp_path}/copy"
    assert statekeep(f"clone counts --as copy {where}", has_config=False).status == 0
    assert "metadata" in files(tmp_path / "copy")
    beside = {"blob.store.uri": (tmp_path / "counts-statekeep").as_uri()}
    assert counts(job | beside, "copy") == CONTENT
