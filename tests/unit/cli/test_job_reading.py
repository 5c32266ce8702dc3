"""The order in which the commands show tasks."""

import msgspec
from log_kit import commit_record

from statekeep.cli.job_reading import tasks_of


def test_tasks_are_shown_by_their_numbers() -> None:
    names = [*(f"Partition {number}" for number in (10, 2, 9, 0)), "orders"]
    record = msgspec.structs.replace(
        commit_record(1), versions=dict.fromkeys(names, "v"), checkpoints={}
    )
    assert tasks_of(record) == [
        "Partition 0",
        "Partition 2",
        "Partition 9",
        "Partition 10",
        "orders",
    ]
