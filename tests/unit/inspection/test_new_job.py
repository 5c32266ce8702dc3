"""A new job has places of its own."""

from pathlib import Path

import msgspec
import pytest
from log_kit import commit_record

from statekeep.backends.kafka.marker import KafkaStateCheckpointMarker
from statekeep.checkpoint.checkpoints import BackendName, CheckpointId, CheckpointV2, StoreName
from statekeep.checkpoint.records import CommitRecord
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection import new_job

pytestmark = pytest.mark.asyncio


def settings(directory: Path, changelog: str) -> Config:
    return load_dict(
        {
            "job.name": "copy",
            "stores.counts.backup.factories": "kafka",
            "stores.counts.changelog": changelog,
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "job.log.backend": "near",
            "backends.near.factory": "blob",
            "backends.near.uri": directory.as_uri(),
        }
    )


def commit_in(topic: str) -> CommitRecord:
    marker = KafkaStateCheckpointMarker(topic, 0, 17, "id", "7_00000000").encode("kafka")
    checkpoint = CheckpointV2(
        CheckpointId(1, 1), {}, {BackendName("kafka"): {StoreName("counts"): marker}}
    )
    raw = msgspec.Raw(encode_checkpoint_v2(checkpoint))
    return msgspec.structs.replace(commit_record(1), checkpoints={"Partition 0": raw})


async def begin(config: Config, commit: CommitRecord) -> None:
    async with new_job.begin_job(config, commit, SystemClock(), owner="test", partitions=1):
        pass


async def prepare_nothing(*_: object) -> None:
    pass


async def test_a_changelog_of_the_old_job_is_not_given_to_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="would write over the state of the other one") as refused:
        await begin(settings(tmp_path, "kafka.counts-log"), commit_in("counts-log"))
    assert refused.value.key == "stores.counts.changelog"
    assert not [*tmp_path.iterdir()]


async def test_a_changelog_of_its_own_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_job, "prepare_backends", prepare_nothing)
    await begin(settings(tmp_path, "kafka.counts-log-2"), commit_in("counts-log"))
