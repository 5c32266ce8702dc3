"""How long the phases of a start took."""

from typing import Final

from statekeep.clock import Clock

PHASES: Final = ("log", "placement", "takeover", "restore", "replay", "query")
"""In their order; restore and replay may take turns."""


class Stopwatch:
    """Divides the time of a start among its phases. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ns = self._last_ns = clock.monotonic_ns()
        self._phases_ns: dict[str, int] = dict.fromkeys(PHASES, 0)

    def lap(self, phase: str) -> None:
        """Count the time since the last lap, or since the beginning, for ``phase``."""
        now_ns = self._clock.monotonic_ns()
        self._phases_ns[phase] += now_ns - self._last_ns
        self._last_ns = now_ns

    def summary(self) -> str:
        """Return the seconds up to the last lap, in all and of each phase."""
        total = f"total_s={(self._last_ns - self._began_ns) / 1e9:.2f}"
        parts = (f"{phase}_s={ns / 1e9:.2f}" for phase, ns in self._phases_ns.items())
        return " ".join([total, *parts])
