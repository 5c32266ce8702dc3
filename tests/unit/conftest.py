"""What unit tests share."""

import pytest
from log_kit import InlineExecutor


@pytest.fixture
def executor() -> InlineExecutor:
    return InlineExecutor()
