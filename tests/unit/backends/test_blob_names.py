"""Names of blobs: one task's never begin with another's, and they say who made them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.base import TaskIdentity
from statekeep.backends.blob.names import (
    attempt_of,
    file_blob_name,
    index_blob_name,
    index_digest,
    is_index,
)
from statekeep.backends.storage.names import TaskPrefix, check_blob_name
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName, TaskName

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)


@st.composite
def prefixes(draw: st.DrawFn) -> TaskPrefix:
    job_uid = draw(st.sampled_from(["", "77aa", "77ab"]))
    task = TaskIdentity(draw(NAMES), draw(NAMES), TaskName(draw(NAMES)), job_uid)
    return TaskPrefix(BackendName(draw(NAMES)), task)


@settings(deadline=None)
@given(prefixes(), prefixes())
def test_no_prefix_begins_another(one: TaskPrefix, other: TaskPrefix) -> None:
    if one != other:
        assert not str(one).startswith(str(other))


def test_tasks_with_numbers_that_begin_alike_are_kept_apart() -> None:
    one, ten = (
        str(TaskPrefix(BackendName("b"), TaskIdentity("j", "o", TaskName(f"Partition {n}"))))
        for n in (1, 10)
    )
    assert not ten.startswith(one)


def test_two_logs_of_one_name_keep_their_blobs_apart() -> None:
    old, new = (
        str(TaskPrefix(BackendName("b"), TaskIdentity("j", "o", TaskName("Partition 0"), uid)))
        for uid in ("77aa", "90bc")
    )
    assert old == "j/state-77aa/b/o/Partition_0/"
    assert new == "j/state-90bc/b/o/Partition_0/"


@settings(deadline=None)
@given(prefixes())
def test_a_prefix_is_a_blob_name(prefix: TaskPrefix) -> None:
    check_blob_name(str(prefix).removesuffix("/"))


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/.", ".tmp-1", "a\\b", "a\nb"])
def test_a_name_that_leads_elsewhere_is_no_blob_name(name: str) -> None:
    with pytest.raises(ValueError, match="not a blob name"):
        check_blob_name(name)


@settings(deadline=None)
@given(prefixes(), NAMES, st.integers(0, 10**6), st.integers(0, 10**6), NAMES)
def test_an_id_names_its_attempt_whatever_precedes_it(
    prefix: TaskPrefix, store: str, epoch: int, attempt: int, file_name: str
) -> None:
    below = prefix.attempt(StoreName(store), epoch, attempt)
    file = file_blob_name(below, "00ff", 3, file_name)
    index = index_blob_name(below, "00ff", b"{}")
    for name in (file, index):
        assert attempt_of(f"s3://bucket/absolute/{name}") == (epoch, attempt)
        assert name.startswith(str(prefix))
    assert is_index(index)
    assert not is_index(file)
    assert len(index_digest(Marker(index))) == 64


def test_a_name_that_is_not_of_our_form_has_no_attempt() -> None:
    for name in ("", "a", "a/b", "a/b/c", "a/1-/c", "a/1-2-3/c", "a/x1-2/c"):
        assert attempt_of(name) is None
