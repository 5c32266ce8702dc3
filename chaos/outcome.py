"""What one schedule came to: the row that every level of the harness hands in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one schedule."""

    seed: int
    level: str
    """``plain``, ``malice``, ``spark``, ``reshape``, ``guard``, ``changes`` or ``clones``."""
    backends: Sequence[str]
    """Places that state was backed up to, as the command line names them."""
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Actions that struck, by fault point; what strikes from outside has a name of its own, such
    as ``disk.wiped``."""
    points: frozenset[str] = frozenset()
    """Fault points that were reached at all."""
    verdicts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of the malice level: what starts came to, and how often; of the other levels, what copies or commands came to."""
    kills: int = 0
    """Processes that died or were stopped."""
    invariants: frozenset[int] = frozenset()
    """Numbers of the invariants that were checked, as the design lists them."""
    failures: Sequence[str] = ()
    """What was found wrong, one sentence each; empty: green."""
    seconds: float = 0.0
    directory: Path | None = None
    """Where everything lies that the schedule left; kept after a failure."""
