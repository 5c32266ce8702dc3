"""Which of a task's checkpoints counts."""

import pytest

from statekeep.checkpoint.checkpoint_manager import (
    CheckpointForms,
    StoredCheckpoint,
    choose_checkpoint,
)

MINUTE = 60_000
FORMS = CheckpointForms(read_versions=(2, 1), max_age_ms=10 * MINUTE)


def at(version: int, minute: int) -> StoredCheckpoint:
    return StoredCheckpoint(version, minute * MINUTE, b"%d@%d" % (version, minute))


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([], None),
        ([at(1, 0)], at(1, 0)),
        ([at(1, 0), at(2, 0)], at(2, 0)),
        ([at(2, 0), at(1, 0)], at(2, 0)),
        ([at(2, 0), at(1, 10)], at(2, 0)),
        ([at(2, 0), at(1, 11)], at(1, 11)),
        ([at(2, 0), at(1, 11), at(2, 12)], at(2, 12)),
        ([at(2, 0), at(2, 5), at(1, 11)], at(2, 5)),
        ([at(1, 50), at(2, 0)], at(2, 0)),
        ([at(3, 0)], None),
        ([at(1, 0), at(3, 90)], at(1, 0)),
    ],
    ids=[
        "none",
        "the only one",
        "the preferred form",
        "the preferred form, written first",
        "not stale yet",
        "stale",
        "preferred again",
        "age of the newest",
        "written later, by an older clock",
        "an unknown form",
        "an unknown form behind",
    ],
)
def test_the_newest_of_the_preferred_form_counts_unless_it_is_stale(
    found: list[StoredCheckpoint], chosen: StoredCheckpoint | None
) -> None:
    assert choose_checkpoint(found, FORMS) == chosen


def test_a_form_that_is_not_read_never_counts() -> None:
    only_first = CheckpointForms(read_versions=(1,))
    assert choose_checkpoint([at(1, 0), at(2, 90)], only_first) == at(1, 0)
