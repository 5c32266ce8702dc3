"""A store of objects or files is one module and one line of the table; nothing else names it."""

import ast
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Self

import pytest

from statekeep.backends import storage
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage import fsspec_client, locations
from statekeep.backends.storage.client import StorageClient
from statekeep.backends.storage.locations import STORES, Location, StoreKind
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.config.key import setting
from statekeep.config.values import TEXT
from statekeep.testing.executor import SerialExecutor

PACKAGE = Path(storage.__path__[0])
OTHERS = {"fsspec_client"}
"""What has the URIs of no line."""


def functions_of(path: Path) -> set[str]:
    parsed = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in parsed.body if isinstance(node, ast.FunctionDef)}


def test_every_module_that_opens_a_store_is_in_the_table() -> None:
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): functions_of(path)
        for path in PACKAGE.rglob("*.py")
    }
    opening = {name for name, found in modules.items() if "open_client" in found}
    managing = {name for name, found in modules.items() if "open_manager" in found}
    assert opening - OTHERS == {kind.module for kind in STORES.values() if not kind.is_manager}
    assert managing == {kind.module for kind in STORES.values() if kind.is_manager}


@dataclass(frozen=True, slots=True)
class ShelfSettings:
    """What a new store of the test has of its own."""

    board: str = setting("blob.store.shelf.board", TEXT, "lower")

    def plainer(self) -> dict[str, Self]:
        return {"shelf.board": replace(self, board="lower")}


@pytest.mark.parametrize("own", [None, ShelfSettings], ids=["none of its own", "settings"])
@pytest.mark.asyncio
async def test_a_store_that_has_its_line_is_used(
    own: type[ShelfSettings] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards: list[str] = []

    def open_client(location: Location) -> StorageClient:
        boards.append("" if own is None else location.settings(own).board)
        return fsspec_client.open_client(replace(location, uri=str(tmp_path / "shelf")))

    module = ModuleType("shelf")
    module.open_client = open_client  # type: ignore[attr-defined] # the contract of the table
    monkeypatch.setitem(sys.modules, f"{storage.__name__}.shelf", module)
    kind = StoreKind("shelf", settings=own)
    monkeypatch.setattr(locations, "STORES", {**STORES, "shelf": kind})
    given = {"uri": "shelf://room/a"} | ({} if own is None else {"shelf.board": "upper"})

    factory = BlobBackendFactory(BackendName("b"), given)
    manager = factory.blob_store_manager(SerialExecutor(), SystemClock())
    await manager.init()
    blob = await manager.put("a/b", b"content", BlobMetadata(None, None, "b"))
    assert await manager.get(blob) == b"content"
    await manager.close()
    assert (tmp_path / "shelf" / "a" / "b").read_bytes() == b"content"
    assert boards == ["" if own is None else "upper"]
