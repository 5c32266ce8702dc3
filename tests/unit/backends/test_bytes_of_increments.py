"""What commits upload beside what they changed: a small run of `benchmarks/increments.py`."""

from pathlib import Path

import pytest

from benchmarks.increments import CHANGED_KEY_BYTES, commit_all
from statekeep.commit.executor import BoundedExecutor

BASE_MB = 20
COMMITS = 100
KEYS = 1_000
CHANGED_BYTES = KEYS * CHANGED_KEY_BYTES


@pytest.mark.slow
@pytest.mark.asyncio
async def test_commits_upload_little_more_than_they_changed(tmp_path: Path) -> None:
    executor = BoundedExecutor(4, "increments")
    _, *commits = await commit_all(tmp_path, BASE_MB, COMMITS, executor, KEYS)
    await executor.close()
    between = [commit.uploaded_bytes for commit in commits if commit.index.deltas]
    assert 0 < COMMITS - len(between) < 10, "some were snapshots"
    assert max(between) <= 1.5 * CHANGED_BYTES
    assert sum(commit.uploaded_bytes for commit in commits) <= 3 * COMMITS * CHANGED_BYTES
