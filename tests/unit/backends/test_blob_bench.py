"""What `make bench-blob` says of its figures."""

from benchmarks.blob_transfer import Measured, Results, verdicts

RESULTS: Results = {
    ("statekeep", "up"): Measured(90, 3),
    ("statekeep", "down"): Measured(85, 3),
    ("statekeep-commit", "up"): Measured(91, 3.1),
    ("s5cmd", "up"): Measured(90, 1),
    ("rclone", "down"): Measured(86, 1),
    ("boto3", "up"): Measured(50, 3),
    ("boto3", "down"): Measured(50, 2.9),
}


def test_each_aim_that_was_measured_is_met_or_missed() -> None:
    assert verdicts(RESULTS, None) == [
        "met     statekeep, up, MB/s, not below s5cmd: 90.00 to 90.00",
        "met     statekeep, up, CPU s/GB, not above boto3: 3.00 to 3.00",
        "MISSED  statekeep, down, MB/s, not below rclone: 85.00 to 86.00",
        "MISSED  statekeep, down, CPU s/GB, not above boto3: 3.00 to 2.90",
        "met     statekeep-commit, up, MB/s, not below s5cmd: 91.00 to 90.00",
        "MISSED  statekeep-commit, up, CPU s/GB, not above boto3: 3.10 to 3.00",
    ]


def test_over_a_link_its_share_is_an_aim_too() -> None:
    told = [line for line in verdicts(RESULTS, 100) if "share" in line]
    assert told == [
        "met     statekeep, up, share of the link: 0.90 to 0.90",
        "MISSED  statekeep, down, share of the link: 0.85 to 0.90",
        "met     statekeep-commit, up, share of the link: 0.91 to 0.90",
    ]
