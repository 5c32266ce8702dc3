"""A few schedules of the crash harness, and proof that its verifier can fail."""

import json
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from chaos import backends as kinds
from chaos.spark import level
from chaos.spark.places import Places
from chaos.spark.plan import Schedule
from chaos.spark.verifier import Verifier

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]

BACKENDS = ["blob", "blob"]
PEACEFUL = Schedule(
    seed=0,
    source="file",
    partitions=3,
    batches=5,
    rows=20,
    settings={"task.commit.ms": "1"},
    is_every_batch=False,
    clock_offset_s=0,
    faults=[],
    modes=("ProcessingTime", "ProcessingTime"),
)


@pytest.fixture(scope="module", autouse=True)
def _sessions() -> Iterator[None]:
    yield
    level.close()
    kinds.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a schedule without faults left."""
    directory = tmp_path_factory.mktemp("peaceful")
    outcome = level.run(PEACEFUL, BACKENDS, directory)
    assert outcome.failures == ()
    return directory


@pytest.fixture
def doctored(finished: Path) -> Iterator[Path]:
    """The same, to be spoilt: in the same place, as settings and names hold absolute paths."""
    kept = finished.with_name(f"{finished.name}-kept")
    shutil.copytree(finished, kept)
    yield finished
    shutil.rmtree(finished)
    kept.rename(finished)


def verdict(directory: Path, damaged: Collection[str] = ()) -> list[str]:
    """Return the numbers of the invariants that the verifier finds broken."""
    places = Places(directory)
    backup = kinds.places(BACKENDS, places.backups)
    settings = level.settings_of(PEACEFUL, backup, places)
    verifier = Verifier(places, backup, settings, PEACEFUL, frozenset(), damaged=damaged)
    return sorted({failure.split(":")[0] for failure in verifier.at_end()})


@pytest.mark.long
@pytest.mark.parametrize("seed", [27, 30])
def test_a_drawn_schedule_breaks_no_invariant(tmp_path: Path, seed: int) -> None:
    outcome = level.run_schedule(seed, BACKENDS, tmp_path)
    assert outcome.failures == ()
    assert outcome.faults


def deliver_again(places: Places) -> None:
    (first, *_) = sorted(places.sink.iterdir())
    shutil.copy(first, places.sink / f"{10**19:020d}-0.json")


def lose_a_delivery(places: Places) -> None:
    sorted(places.sink.iterdir())[2].unlink()


def change_a_row(places: Places) -> None:
    path = sorted(places.sink.iterdir())[1]
    document = json.loads(path.read_text())
    document["rows"][0][1] += 1
    path.write_text(json.dumps(document))


def change_the_input(places: Places) -> None:
    path = places.input / "001.json"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")


def change_boundaries(places: Places) -> None:
    path = places.checkpoint / "offsets" / "2"
    path.write_text(path.read_text().replace('"logOffset":2', '"logOffset":3'))


def newest_blob(places: Places, backend: str) -> Path:
    blobs = [path for path in places.backup(backend).glob("*/state-*/**/*") if path.is_file()]
    return max(blobs, key=lambda path: path.stat().st_mtime_ns)


def lose_a_blob(places: Places) -> None:
    newest_blob(places, "blob-1").unlink()


def leave_a_blob(places: Places) -> None:
    path = newest_blob(places, "blob-2")
    shutil.copy(path, path.with_name(f"{path.name}-orphan"))


def leave_a_work_directory(places: Places) -> None:
    (task, *_) = places.local.glob("*/main/Partition_*")
    (task / "work-17").mkdir()


def lose_the_last_commit(places: Places) -> None:
    newest = max((places.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (deliver_again, "06"),
        (lose_a_delivery, "06"),
        (change_a_row, "06"),
        (change_the_input, "10"),
        (change_boundaries, "07"),
        (lose_a_blob, "14"),
        (leave_a_blob, "16"),
        (leave_a_work_directory, "16"),
        (lose_the_last_commit, "03"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_the_verifier_sees(doctored: Path, spoil: Callable[[Places], None], expected: str) -> None:
    spoil(Places(doctored))
    assert expected in verdict(doctored)


def test_a_place_that_was_damaged_on_purpose_may_fail_and_the_other_one_may_not(
    doctored: Path,
) -> None:
    lose_a_blob(Places(doctored))
    assert verdict(doctored, damaged={"blob-1"}) == []
    assert "14" in verdict(doctored, damaged={"blob-2"})
