"""Names of blobs: one task's never begin with another's, and they say who made them."""

from hypothesis import given
from hypothesis import strategies as st

from statekeep.backends.base import TaskIdentity
from statekeep.backends.blob.names import (
    TaskPrefix,
    attempt_of,
    file_blob_name,
    index_blob_name,
    index_digest,
    is_index,
)
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName, TaskName

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1)


@st.composite
def prefixes(draw: st.DrawFn) -> TaskPrefix:
    task = TaskIdentity(draw(NAMES), draw(NAMES), TaskName(draw(NAMES)))
    return TaskPrefix(BackendName(draw(NAMES)), task)


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


@given(prefixes(), NAMES, st.integers(0, 10**6), st.integers(0, 10**6), NAMES)
def test_an_id_tells_its_attempt_whatever_stands_before_it(
    prefix: TaskPrefix, store: str, epoch: int, attempt: int, file_name: str
) -> None:
    below = prefix.attempt(StoreName(store), epoch, attempt)
    file = file_blob_name(below, "00ff", 3, file_name)
    index = index_blob_name(below, "00ff", b"{}")
    for name in (file, index):
        assert attempt_of(f"s3://bucket/root/{name}") == (epoch, attempt)
        assert name.startswith(str(prefix))
    assert is_index(index)
    assert not is_index(file)
    assert len(index_digest(Marker(index))) == 64


def test_a_name_that_is_not_of_our_form_has_no_attempt() -> None:
    for name in ("", "a", "a/b", "a/b/c", "a/1-/c", "a/1-2-3/c", "a/x1-2/c"):
        assert attempt_of(name) is None
