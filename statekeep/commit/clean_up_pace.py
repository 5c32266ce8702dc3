"""How often a job cleans up: each time costs requests for every task that has changed."""

from statekeep.clock import Clock


class CleanUpPace:
    """Spaces clean-ups out; one that failed is repeated after the next commit."""

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        """Let the first one begin at any time.

        Args:
            clock: The job's.
            interval_ms: Shortest time between the beginnings of two clean-ups that end.
        """
        self._clock = clock
        self._interval_ns = interval_ms * 1_000_000
        self._next_ns = clock.monotonic_ns()
        self._began_ns = self._next_ns

    @property
    def is_due(self) -> bool:
        """Whether a commit made now should be followed by a clean-up."""
        return self._clock.monotonic_ns() >= self._next_ns

    def begin(self) -> None:
        """Note that a clean-up begins."""
        self._began_ns = self._clock.monotonic_ns()

    def end(self) -> None:
        """Note that it has ended, having done what it could."""
        self._next_ns = self._began_ns + self._interval_ns
