"""A driver of its own that dies by SIGKILL when all uploads of its last commit are there.

``python dying_driver.py ROOT`` runs the stream in ROOT to the end of its input.
"""

import os
import signal
import sys
from pathlib import Path

from conftest import PARTITIONS, Stream

import statekeep as sk
from statekeep.fault_points import fault_handler


def die_before_the_commit_record(point: str) -> None:
    if point == "commit_record.before":
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    builder = sk.session_builder("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", str(PARTITIONS)).getOrCreate()
    stream = Stream(spark, Path(sys.argv[1]))
    with fault_handler(die_before_the_commit_record):
        stream.run(task__commit__ms=0)


if __name__ == "__main__":
    main()
