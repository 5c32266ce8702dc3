"""Runs by an interpreter that has Quix Streams: lets it recover a store, and prints the seconds.

python benchmarks/quix_recovery.py create SERVERS DIRECTORY   creates its topics
python benchmarks/quix_recovery.py recover SERVERS DIRECTORY  prints how long the recovery took
"""

import logging
import sys
import time
from collections.abc import Callable

from quixstreams import Application
from typing_extensions import override

GROUP = "bench-quix"
SOURCE = "bench-quix-source"


class Stopwatch(logging.Handler):
    """Takes the time between the lines that the recovery logs at its begin and at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.began = self.ended = 0.0
        self.has_recovered = False
        self.on_end: Callable[[], None] | None = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Beginning recovery"):
            self.began = time.perf_counter()
        elif text.startswith("Recovery successful"):
            self.has_recovered = True
        elif text.startswith("Recovery process complete"):
            self.ended = time.perf_counter()
            if self.on_end is not None:
                self.on_end()


def main(phase: str, servers: str, directory: str) -> None:
    app = Application(
        broker_address=servers,
        consumer_group=GROUP,
        state_dir=directory,
        auto_offset_reset="earliest",
        loglevel=None,
    )
    rows = app.dataframe(app.topic(SOURCE, value_deserializer="bytes"))
    rows.update(lambda _, state: state.set("seen", 1), stateful=True)
    watch = Stopwatch()
    logger = logging.getLogger("quixstreams.state.recovery")
    logger.setLevel(logging.INFO)
    logger.addHandler(watch)
    watch.on_end = app.stop
    app.run(timeout=10 if phase == "create" else 600)
    if phase == "recover":
        if not watch.has_recovered:
            sys.exit("nothing was recovered")
        print(watch.ended - watch.began)


if __name__ == "__main__":
    main(*sys.argv[1:])
