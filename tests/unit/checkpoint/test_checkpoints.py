import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.checkpoint.checkpoints import CheckpointId, VersionId
from statekeep.errors import CheckpointCorruptError


@settings(deadline=None)
@given(
    st.integers(min_value=0, max_value=10**18 - 1), st.integers(min_value=0, max_value=10**9 - 1)
)
def test_every_checkpoint_id_comes_back(millis: int, nanos: int) -> None:
    checkpoint_id = CheckpointId(millis, nanos)

    assert CheckpointId.parse(checkpoint_id.serialize()) == checkpoint_id


def test_checkpoint_id_is_written_as_samza_writes_it() -> None:
    assert str(CheckpointId(1_700_000_000_123, 42)) == "1700000000123-42"


def test_checkpoint_id_says_when_its_commit_began() -> None:
    assert CheckpointId.at(1_700_000_000_123_000_042) == CheckpointId(1_700_000_000_123, 42)


@pytest.mark.parametrize("text", ["", "1", "1-", "-1-2", "1-2-3", "1-x", "1- 2", "٣-4", "1-2\n"])
def test_text_of_another_form_is_no_checkpoint_id(text: str) -> None:
    with pytest.raises(CheckpointCorruptError):
        CheckpointId.parse(text)


@pytest.mark.parametrize(("millis", "nanos"), [(-1, 0), (0, -1), (10**18, 0), (0, 10**9)])
def test_checkpoint_id_that_could_not_be_read_back_is_refused(millis: int, nanos: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        CheckpointId(millis, nanos)


@settings(deadline=None)
@given(
    st.integers(min_value=0, max_value=10**18 - 1),
    st.text("0123456789abcdef", min_size=8, max_size=64),
)
def test_every_version_id_comes_back(batch: int, uid: str) -> None:
    version_id = VersionId(batch, uid)

    assert VersionId.parse(str(version_id)) == version_id


@pytest.mark.parametrize(
    "text",
    ["", "7", "7_", "7_0123", "7_0123456789ABCDEF", "-1_01234567", "7_../../..", "7_01234567\n"],
)
def test_text_of_another_form_is_no_version_id(text: str) -> None:
    with pytest.raises(CheckpointCorruptError):
        VersionId.parse(text)


@pytest.mark.parametrize(("batch", "uid"), [(-1, "01234567"), (0, "x"), (0, "")])
def test_version_id_that_could_not_be_read_back_is_refused(batch: int, uid: str) -> None:
    with pytest.raises(ValueError, match="version id"):
        VersionId(batch, uid)
