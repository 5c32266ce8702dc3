"""Where the time of a start goes, as the log tells it."""

from statekeep.spark.driver.progress import Stopwatch
from statekeep.testing.clock import FakeClock


def test_the_time_of_a_start_is_divided_among_its_phases() -> None:
    clock = FakeClock()
    stopwatch = Stopwatch(clock)
    for seconds, phase in [(2.0, "log"), (0.5, "restore"), (4.0, "replay"), (1.0, "restore")]:
        clock.advance(seconds)
        stopwatch.lap(phase)
    assert stopwatch.summary() == (
        "total_s=7.50 log_s=2.00 placement_s=0.00 takeover_s=0.00 restore_s=1.50 replay_s=4.00"
        " query_s=0.00"
    )
