"""Local state that is deleted while its query runs: it comes back from a backend."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Stream

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def _whole(stream: Stream) -> list[Path]:
    return [stream.local_dir]


def _containers(stream: Stream) -> list[Path]:
    return list(stream.local_dir.glob("*/container-*"))


def _outboxes(stream: Stream) -> list[Path]:
    return list(stream.local_dir.glob("*/container-*/outbox"))


@pytest.mark.parametrize("find", [_whole, _containers, _outboxes])
@pytest.mark.parametrize("is_every_batch", [False, True], ids=["async", "every batch"])
def test_a_directory_of_local_state_that_is_deleted_under_a_query_costs_nothing(
    stream: Stream,
    find: Callable[[Stream], list[Path]],
    is_every_batch: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    stream.add_batches(6)

    lost = stream.root / "lost"

    def lose(batch: int) -> None:
        if batch == 3 and not lost.exists():
            lost.touch()
            for directory in find(stream):
                shutil.rmtree(directory)

    stream.on_batch = lose
    query = stream.run(task__commit__ms=1, task__commit__every__batch=is_every_batch)
    assert lost.exists()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3, 4, 5]
    assert stream.received() == stream.expected(6)
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 5
