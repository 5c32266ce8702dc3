"""The test class that docs/how-to/write-a-backend.md prints, run on a backend on a directory."""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
import test_blob_backend
from pages_kit import block

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.checkpoint.checkpoints import BackendName

PAGE = "docs/how-to/write-a-backend.md"


class TapeBackendFactory(BlobBackendFactory):
    """Takes a directory for a tape."""

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        super().__init__(BackendName(name), {"uri": f"file://{settings['directory']}"})


def _run_the_page() -> Any:
    module = ModuleType("tape_backend")
    module.__dict__["TapeBackendFactory"] = TapeBackendFactory
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tape_backend", module)
        exec(compile(block(PAGE, "In short", "python"), PAGE, "exec"), names)  # noqa: S102
    return names["TestTape"]


class TestTapeOfThePage(_run_the_page(), test_blob_backend.TestBlobBackendOnADirectory):  # type: ignore[misc]
    """The class as printed, with the hooks that look at a directory."""


def test_the_class_of_the_page_makes_the_backend() -> None:
    assert TestTapeOfThePage.make_factory.__globals__["TapeBackendFactory"] is TapeBackendFactory
