"""Samza's checkpoint topic: names, keys, and form 1 with its changelog offsets."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import cast

import pytest
from checkpoint_topic_kit import FakeTopic, Record, put_record, reader_of

from statekeep.backends.kafka.checkpoint_topic import (
    KafkaCheckpointManager,
    checkpoint_key,
    checkpoint_topic,
)
from statekeep.backends.kafka.compacted_topic import CompactedTopic
from statekeep.backends.kafka.legacy_checkpoint import from_v1, to_v1
from statekeep.backends.kafka.marker import ChangelogMarker
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoint_manager import CheckpointForms
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV1,
    CheckpointV2,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.serde import decode_checkpoint_v2, with_backend_names
from statekeep.errors import CheckpointCorruptError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

GOLDEN = Path(__file__).parents[2] / "golden"
KAFKA = BackendName("kafka")
CHANGELOG = SystemStreamPartition("kafka", "job-sessions-changelog", 3)
CLICKS = SystemStreamPartition("kafka", "page.clicks", 0)
SETTINGS = KafkaSettings(
    servers="broker:9092",
    topic_prefix="kafka",
    stores={
        "sessions.changelog": "kafka.job-sessions-changelog",
        "totals.changelog": "job-totals-changelog",
        "totals.changelog.min.compaction.lag.ms": "1",
    },
)


def golden_v2() -> CheckpointV2:
    read = decode_checkpoint_v2((GOLDEN / "checkpoint-v2.json").read_bytes(), "golden")
    name = "org.apache.samza.storage.KafkaChangelogStateBackendFactory"
    return with_backend_names(read, {name: KAFKA})


def test_the_topic_is_named_as_samza_names_it() -> None:
    assert checkpoint_topic("my_job", "1") == "__samza_checkpoint_ver_1_for_my-job_1"


@pytest.mark.parametrize(("version", "kind"), [(1, "checkpoint"), (2, "checkpoint-v2")])
def test_the_key_of_each_form_is_samzas_byte_for_byte(version: int, kind: str) -> None:
    assert checkpoint_key(TaskName("Partition 3"), version).decode() == (
        '{"systemstreampartition-grouper-factory":'
        '"org.apache.samza.container.grouper.stream.GroupByPartitionFactory",'
        f'"taskName":"Partition 3","type":"{kind}"}}'
    )


def test_form_1_has_the_ends_of_the_changelogs_among_the_inputs() -> None:
    written = to_v1(golden_v2(), KAFKA).input_offsets
    golden = (GOLDEN / "kafka-changelog-offset.txt").read_text().strip()
    assert written[CHANGELOG] == golden
    totals = SystemStreamPartition("kafka", "job-totals-changelog", 3)
    assert written[totals] == "1700000000123-456789:null"
    assert set(golden_v2().input_offsets) < set(written)


def test_form_1_comes_back_in_form_2_but_for_markers_of_other_backends() -> None:
    expected = golden_v2()
    back = from_v1(to_v1(expected, KAFKA), 5, SETTINGS, KAFKA)
    assert back.checkpoint_id == expected.checkpoint_id
    assert back.input_offsets == expected.input_offsets
    markers = {s: ChangelogMarker.decode(m) for s, m in back.markers_of(KAFKA).items()}
    golden = {s: ChangelogMarker.decode(m) for s, m in expected.markers_of(KAFKA).items()}
    assert markers == golden


def test_a_backend_of_another_name_is_another_system_in_both_forms() -> None:
    near = BackendName("near")
    markers = {near: golden_v2().markers_of(KAFKA)}
    written = to_v1(CheckpointV2(CheckpointId(5, 6), {}, markers), near)
    assert written.input_offsets.keys() == {
        SystemStreamPartition("near", topic, 3)
        for topic in ("job-sessions-changelog", "job-totals-changelog")
    }
    settings = dataclasses.replace(
        SETTINGS, stores={"sessions.changelog": "near.job-sessions-changelog"}
    )
    ssp = dataclasses.replace(CHANGELOG, system="near")
    back = from_v1(CheckpointV1({ssp: "5-6:88"}), 5, settings, near)
    marker = json.loads(back.markers_of(near)[StoreName("sessions")])
    assert marker["changelog-ssp"]["system"] == "near"
    assert to_v1(back, near).input_offsets == {ssp: "5-6:88"}


def test_form_1_of_a_job_without_changelogs_has_inputs_alone() -> None:
    other = SystemStreamPartition("kafka", "other", 1)
    back = from_v1(CheckpointV1({CLICKS: "7", other: None}), 5, SETTINGS, KAFKA)
    assert back == CheckpointV2(CheckpointId(5, 0), {CLICKS: "7"}, {})


@pytest.mark.parametrize(
    ("text", "offset"), [("88", 88), ("1-2:88", 88), ("1-2:null", None), (None, None)]
)
def test_older_forms_of_a_changelogs_offset_are_read(text: str | None, offset: int | None) -> None:
    back = from_v1(CheckpointV1({CHANGELOG: text}), 5, SETTINGS, KAFKA)
    marker = ChangelogMarker.decode(back.markers_of(KAFKA)[StoreName("sessions")])
    assert (marker.topic, marker.partition, marker.offset) == (
        CHANGELOG.stream,
        CHANGELOG.partition,
        offset,
    )
    assert marker.content is None


@pytest.mark.parametrize("text", ["", "eighty", "1-2:", "one:88"])
def test_what_is_no_offset_of_a_changelog_is_refused(text: str) -> None:
    with pytest.raises(CheckpointCorruptError):
        from_v1(CheckpointV1({CHANGELOG: text}), 5, SETTINGS, KAFKA)


def manager_of(settings: KafkaSettings, records: list[Record]) -> KafkaCheckpointManager:
    """Return what reads and writes a list of records."""
    manager = KafkaCheckpointManager(
        settings,
        "topic",
        CheckpointForms(),
        BackendName(settings.topic_prefix),
        executor=SerialExecutor(),
        clock=FakeClock(),
    )
    manager._topic = cast("CompactedTopic", FakeTopic("topic", records))
    return manager


@pytest.mark.asyncio
async def test_the_keys_name_the_grouper_of_the_job_and_any_is_read() -> None:
    task, records = TaskName("Partition 3"), list[Record]()
    settings = dataclasses.replace(SETTINGS, checkpoint_grouper="com.example.Grouper")
    written = CheckpointV2(CheckpointId(5, 6), {CLICKS: "7"}, {})
    await manager_of(settings, records).write(task, written)
    assert json.loads(records[0].name)["systemstreampartition-grouper-factory"] == (
        "com.example.Grouper"
    )
    assert await manager_of(SETTINGS, records).read_last(task) == written


@pytest.mark.asyncio
async def test_a_record_that_is_no_checkpoint_is_refused_again_at_the_next_reading() -> None:
    task = TaskName("Partition 3")
    records = [Record(0, b"no key", b""), Record(1, checkpoint_key(task, 2), b"newer")]
    manager = manager_of(SETTINGS, records)
    for _ in range(2):
        with pytest.raises(CheckpointCorruptError, match=r"not a key of a checkpoint.*offset=0"):
            await manager.read_last(task)


@pytest.mark.asyncio
async def test_a_task_keeps_its_own_checkpoints_of_the_topic_and_another_may_be_asked_for() -> None:
    records: list[Record] = []
    writer, reader = manager_of(SETTINGS, records), manager_of(SETTINGS, records)
    tasks = [TaskName(f"Partition {number}") for number in range(64)]
    for number, task in enumerate(tasks):
        await writer.write(task, CheckpointV2(CheckpointId(5, 6), {CLICKS: str(number)}, {}))
    for number in (3, 7, 3):
        found = await reader.read_last(tasks[number])
        assert found is not None
        assert found.input_offsets == {CLICKS: str(number)}
    assert set(reader._found) == {tasks[3], tasks[7]}
    assert await reader.read_last(TaskName("Partition 64")) is None
    await writer.write(tasks[3], CheckpointV2(CheckpointId(6, 6), {CLICKS: "newer"}, {}))
    newer = await reader.read_last(tasks[3])
    assert newer is not None
    assert newer.input_offsets == {CLICKS: "newer"}


@pytest.mark.asyncio
async def test_samzas_changelog_markers_stand_under_the_backends_own_name() -> None:
    near, task = dataclasses.replace(SETTINGS, topic_prefix="near"), TaskName("Partition 3")
    record = Record(0, checkpoint_key(task, 2), (GOLDEN / "checkpoint-v2.json").read_bytes())
    found = await manager_of(near, [record]).read_last(task)
    assert found is not None
    assert found.markers_of(BackendName("near")) == golden_v2().markers_of(KAFKA) != {}
    assert not found.markers_of(KAFKA)


@pytest.mark.asyncio
async def test_a_form_to_come_is_left_out_loudly_and_the_known_ones_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri, task = tmp_path.as_uri(), TaskName("Partition 3")
    written = CheckpointV2(CheckpointId(5, 6), {CLICKS: "7"}, {})
    await reader_of(uri, "job", CheckpointForms(write_versions=(2,))).write(task, written)
    for _ in range(2):
        key = checkpoint_key(task, 2).replace(b"checkpoint-v2", b"checkpoint-v3")
        put_record(uri, "job", key, b"of a later release")
    with caplog.at_level(logging.WARNING, "statekeep"):
        assert await reader_of(uri, "job", CheckpointForms()).read_last(task) == written
    (told,) = caplog.messages  # once, however many there are
    assert told.startswith("checkpoints of a form that is not read are left out: ")
    assert told.endswith("type=checkpoint-v3")


@pytest.mark.asyncio
async def test_a_job_that_goes_back_to_form_1_finds_what_it_wrote(tmp_path: Path) -> None:
    uri, task = tmp_path.as_uri(), TaskName("Partition 3")
    both = reader_of(uri, "job", CheckpointForms(write_versions=(1, 2)))
    await both.write(task, CheckpointV2(CheckpointId(5, 6), {CLICKS: "7"}, {}))
    only_2 = reader_of(uri, "job", CheckpointForms(write_versions=(2,)))
    await only_2.write(task, CheckpointV2(CheckpointId(6, 6), {CLICKS: "8"}, {}))
    found = await reader_of(uri, "job", CheckpointForms(read_versions=(1,))).read_last(task)
    assert found is not None
    assert found.input_offsets == {CLICKS: "7"}
