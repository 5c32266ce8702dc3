"""The command line beside a job whose state and log are in Kafka alone."""

import asyncio
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli_kit import INPUT, CommandLine
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from servers.kafka import KafkaBroker

from statekeep.cli.exit_status import ExitStatus
from statekeep.config.load import load_dict
from statekeep.container.container import Container

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TASKS = ["Partition 0", "Partition 1"]
LOGS = " ".join(f"--task '{task}'" for task in TASKS)
Content = dict[bytes, bytes]


@pytest.fixture
def settings(broker: KafkaBroker, tmp_path: Path) -> dict[str, str]:
    return {
        "job.name": f"orders-{uuid.uuid4().hex[:12]}",
        "job.logged.store.base.dir": str(tmp_path / "local"),
        "stores.counts.backup.factories": "kafka",
        "backends.kafka.bootstrap.servers": broker.servers,
        "task.commit.ms": "0",
    }


@pytest.fixture
def statekeep(
    settings: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> CommandLine:
    config = tmp_path / "job.properties"
    lines = [f"{key}={value}" for key, value in settings.items()]
    config.write_text("\n".join(lines), encoding="utf-8")
    asyncio.run(run(settings, TASKS, commits=3))
    return CommandLine(config, monkeypatch, capsys)


async def run(settings: Mapping[str, str], tasks: list[str], commits: int = 0) -> list[Content]:
    """Start all tasks and return what they start with; then commit new keys so often."""
    async with Container(load_dict(dict(settings))) as container:
        started = [await container.start_task(name, ["counts"]) for name in tasks]
        content = [dict(task.store("counts").scan()) for task in started]
        for number in range(commits):
            for place, task in enumerate(started):
                task.store("counts").put(b"key-%d" % (10 * place + number), b"%d" % number)
                await (await task.commit({INPUT: str(number)}, force=True)).wait()
    return content


def everything(contents: list[Content]) -> Content:
    return {key: value for content in contents for key, value in content.items()}


def ends(settings: Mapping[str, str]) -> dict[str, int]:
    """Return ``{topic and partition: end}`` of every changelog of the job and of its copies."""
    servers = settings["backends.kafka.bootstrap.servers"]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test"})
    topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics
    try:
        return {
            f"{name}-{number}": consumer.get_watermark_offsets(TopicPartition(name, number))[1]
            for name, topic in topics.items()
            if settings["job.name"] in name and name.endswith(".changelog")
            for number in topic.partitions
        }
    finally:
        consumer.close()


def current(statekeep: CommandLine, task: str) -> str:
    shown = statekeep(f"checkpoints show --task '{task}' --json")
    assert shown.status == 0
    return str(shown.json["commit"])


def test_a_new_job_starts_from_a_commit_of_a_job_on_kafka(
    statekeep: CommandLine, settings: dict[str, str], tmp_path: Path
) -> None:
    expected, before = asyncio.run(run(settings, TASKS)), ends(settings)
    copy = f"{settings['job.name']}-copy"
    made = statekeep(f"savepoint restore {current(statekeep, TASKS[0])} --as {copy} {LOGS}")
    assert made.status == 0, made.err
    old = {name: end for name, end in ends(settings).items() if copy not in name}
    assert old == before
    shutil.rmtree(tmp_path / "local")
    assert asyncio.run(run(settings | {"job.name": copy}, TASKS)) == expected
    assert everything(expected)


def test_a_job_on_kafka_gets_another_number_of_tasks(
    statekeep: CommandLine, settings: dict[str, str], tmp_path: Path
) -> None:
    expected, before = asyncio.run(run(settings, TASKS)), ends(settings)
    wide = f"{settings['job.name']}-wide"
    made = statekeep(f"rescale --partitions 3 --as {wide} --router cli_kit:route {LOGS}")
    assert made.status == 0, made.err
    assert {name: end for name, end in ends(settings).items() if wide not in name} == before
    shutil.rmtree(tmp_path / "local")
    contents = asyncio.run(
        run(settings | {"job.name": wide}, [f"Partition {number}" for number in range(3)])
    )
    assert everything(contents) == everything(expected)
    assert [{int(key.rpartition(b"-")[2]) % 3 for key in found} for found in contents] == [
        {0},
        {1},
        {2},
    ]


def test_a_savepoint_of_a_job_on_kafka_is_kept_in_a_blob_store(
    statekeep: CommandLine, settings: dict[str, str], tmp_path: Path
) -> None:
    near = {"backends.near.factory": "blob", "backends.near.uri": (tmp_path / "near").as_uri()}
    both = {**near, "stores.counts.backup.factories": "kafka,near"}
    given = " ".join(f"--set {key}={value}" for key, value in both.items())
    made = statekeep(f"savepoint create kept --to near {LOGS} {given} --yes")
    assert made.status == 0, made.err
    expected = asyncio.run(run(settings | both, TASKS, commits=5))
    copy = f"{settings['job.name']}-copy"
    made = statekeep(f"savepoint restore kept --as {copy} {LOGS} {given}")
    assert made.status == 0, made.err
    shutil.rmtree(tmp_path / "local")
    assert asyncio.run(run(settings | both | {"job.name": copy}, TASKS)) == expected


def test_a_savepoint_that_kafka_alone_would_keep_is_refused(statekeep: CommandLine) -> None:
    refused = statekeep(f"savepoint create kept {LOGS} --yes")
    assert refused.status == ExitStatus.USAGE
    assert "old commits" in refused.err


def test_what_a_job_has_on_kafka_is_shown_verified_and_restored(
    statekeep: CommandLine, settings: dict[str, str], tmp_path: Path
) -> None:
    task = f"--task '{TASKS[0]}'"
    shown = statekeep(f"stores show {task} --json")
    assert (shown.status, shown.err) == (0, "")
    assert settings["job.name"] in shown.out
    before = ends(settings)
    assert statekeep(f"verify {task}").status == 0
    assert statekeep(f"gc --dry-run {task} --json").status == 0
    target = tmp_path / "restored"
    restored = statekeep(f"restore '{target}' {task} --json")
    assert restored.status == 0, restored.err
    assert list(target.rglob("SEAL-MANIFEST"))
    assert ends(settings) == before


def test_a_task_on_kafka_goes_on_from_other_offsets_with_its_state(
    statekeep: CommandLine, settings: dict[str, str]
) -> None:
    expected = asyncio.run(run(settings, TASKS))
    line = f"checkpoints overwrite-offsets '{TASKS[0]}' kafka.orders.v1.0=77 --yes"
    assert statekeep(line).status == 0

    async def start() -> tuple[str, Content]:
        async with Container(load_dict(settings)) as container:
            task = await container.start_task(TASKS[0], ["counts"])
            return task.input_offsets[INPUT], dict(task.store("counts").scan())

    assert asyncio.run(start()) == ("77", expected[0])


def test_a_job_on_kafka_begins_anew_after_a_reset(
    statekeep: CommandLine, settings: dict[str, str]
) -> None:
    before = ends(settings)
    assert statekeep(f"reset --dry-run {LOGS}").status == 0
    assert ends(settings) == before
    reset = statekeep(f"reset {LOGS} --yes")
    assert reset.status == 0, reset.err
    assert asyncio.run(run(settings, TASKS, commits=1)) == [{}, {}]
    assert everything(asyncio.run(run(settings, TASKS))) == {b"key-0": b"0", b"key-10": b"0"}
