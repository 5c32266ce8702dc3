"""The walk-through in docs/migration.md from form 1 to form 2 of checkpoints, and back."""

import asyncio
from pathlib import Path

import pytest
from checkpoint_topic_kit import reader_of
from migration_kit import Reader

from statekeep.checkpoint.checkpoint_manager import CheckpointForms
from statekeep.checkpoint.checkpoints import SystemStreamPartition, TaskName

NUMBERS = SystemStreamPartition("example", "numbers", 0)
TOPIC = {"factory": "checkpoint_topic_kit:TopicFactory", "uri": "file:///srv/{name}"}
STEPS = {
    "before": "Form 1 to form 2 of checkpoints",
    "both": "Form 1 to form 2, step 1",
    "form 2 alone": "Form 1 to form 2, step 2",
    "back": "Form 1 to form 2, the way back",
}


def newest(directory: Path, *read_versions: int) -> int | None:
    """Return the number that somebody finds who reads these forms from the topic."""

    async def read() -> int | None:
        uri = (directory / "topic").as_uri()
        manager = reader_of(uri, "counter", CheckpointForms(read_versions=read_versions))
        found = await manager.read_last(TaskName("Partition 0"))
        return None if found is None else int(found.input_offsets[NUMBERS])

    return asyncio.run(read())


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Reader:
    places = {"old": {"factory": "blob", "uri": "file:///srv/{name}"}, "topic": TOPIC}
    reader = Reader(tmp_path, monkeypatch, capsys, places)
    reader.follow("A job to try it with")
    return reader


def test_each_step_leaves_the_forms_in_the_topic_that_the_page_says(
    reader: Reader, tmp_path: Path
) -> None:
    reader.follow(STEPS["before"])
    assert (newest(tmp_path, 1), newest(tmp_path, 2)) == (19, None)
    reader.follow(STEPS["both"])
    assert (newest(tmp_path, 1), newest(tmp_path, 2)) == (29, 29)
    reader.follow(STEPS["form 2 alone"])
    assert (newest(tmp_path, 1), newest(tmp_path, 2)) == (29, 39)
    reader.follow(STEPS["back"])
    assert (newest(tmp_path, 1), newest(tmp_path, 2)) == (59, 49)
    # Why the page has a second line: form 2 is preferred until it is old enough to be stale.
    assert newest(tmp_path, 2, 1) == 49
    assert reader.runs == 6


@pytest.mark.parametrize("step", list(STEPS))
def test_no_step_needs_the_topic_or_the_local_disk_to_go_on(
    reader: Reader, tmp_path: Path, step: str
) -> None:
    for name, heading in STEPS.items():
        reader.follow(heading)
        if name == step:
            break
    del reader.settings["task.checkpoint.factory"]
    reader.set()
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")
