"""What several files of tests here start from."""

from pathlib import Path

import pytest
import pytest_asyncio
from log_kit import InlineExecutor

from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage import local as local_files
from statekeep.testing.storage import bare_manager


@pytest_asyncio.fixture(params=["unnamed", "named"])
async def local(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BlobStoreManager:
    """A manager of a local directory, on filesystems with and without unnamed files."""
    if request.param == "named":
        monkeypatch.setattr(local_files, "_open_unnamed", lambda _: None)
    manager = bare_manager(str(tmp_path / "root"), {}, InlineExecutor())
    await manager.init()
    return manager
