"""A query whose state is encrypted: goes on, rotates its keys, and notices a log that was set back."""

import base64
import shutil
from pathlib import Path

import pytest
from conftest import Stream, events_of, lose_directory
from pyspark.errors import StreamingQueryException

from statekeep.errors import CheckpointLocationError, StateBackupError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

OLD, NEW = (
    f"{name} {base64.b64encode(name[:1].encode() * 32).decode()}" for name in ("old", "new")
)


@pytest.fixture
def place(stream: Stream) -> Path:
    """Encrypt the stream's backups; return where they are."""
    place = stream.root / "place"
    stream.settings |= {
        "stores.backup.factories": "blob",
        "blob.store.uri": place.as_uri(),
        "blob.store.encryption": "aes-256-gcm",
        "blob.store.encryption.keys": f"file:{stream.root / 'keys'}",
    }
    (stream.root / "keys").write_text(OLD)
    return place


def test_it_goes_on_after_lost_disks_and_needs_the_new_key_alone_after_a_rotation(
    stream: Stream, place: Path
) -> None:
    stream.add_batches(2)
    stream.run()
    lose_directory(stream.local_dir)
    (stream.root / "keys").write_text(f"{NEW}\n{OLD}")
    stream.add_batches(3)
    query = stream.run(task__commit__ms=0)
    assert [event["reason"] for event in events_of(query, "void")] == []
    assert all(
        b" sealed " in path.read_bytes()[:20] for path in (place / "counts" / "log").iterdir()
    )
    stream.add_batches(3)
    stream.run(task__commit__every__batch=True)
    lose_directory(stream.local_dir)
    (stream.root / "keys").write_text(NEW)
    stream.add_batches(1)
    stream.run()
    assert stream.received() == stream.expected(9)


def test_a_log_that_is_set_back_does_not_fit_the_checkpoint_location(
    stream: Stream, place: Path
) -> None:
    stream.add_batches(2)
    stream.run()
    shutil.copytree(place, stream.root / "before")
    stream.add_batches(2)
    stream.run()
    shutil.rmtree(place)
    (stream.root / "before").rename(place)
    lose_directory(stream.local_dir)
    stream.add_batches(1)
    with pytest.raises(
        (CheckpointLocationError, StreamingQueryException), match="are of different times"
    ):
        stream.run()


def test_a_record_that_is_changed_ends_the_start(stream: Stream, place: Path) -> None:
    stream.add_batches(2)
    stream.run()
    newest = max((place / "counts" / "log").iterdir())
    newest.write_bytes(newest.read_bytes().replace(b'"epoch":1', b'"epoch":9'))
    with pytest.raises((StateBackupError, StreamingQueryException), match="position="):
        stream.run()
