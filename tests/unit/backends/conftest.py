"""What several files of tests here start from."""

from pathlib import Path

import pytest
import pytest_asyncio
from log_kit import InlineExecutor

from statekeep.backends.blob.managers import local_place
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager


@pytest_asyncio.fixture(params=["unnamed", "named"])
async def local(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FsspecBlobStoreManager:
    """A manager of a local directory, on filesystems with and without unnamed files."""
    if request.param == "named":
        monkeypatch.setattr(local_place, "_open_unnamed", lambda _: None)
    manager = FsspecBlobStoreManager(str(tmp_path / "root"), {}, InlineExecutor())
    await manager.init()
    return manager
