"""What happened in one schedule, for the verifier and the table."""

from dataclasses import dataclass, field
from typing import Any

from chaos.spark.session import Event


@dataclass
class History:
    """What happened, for the verifier and the table."""

    runs: int = 0
    kills: int = 0
    strikes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Actions by fault point."""
    runtime: list[Event] = field(default_factory=list[Event])
    errors: list[str] = field(default_factory=list[str])
    """What queries failed with."""
    zombies: set[int] = field(default_factory=set[int])
    """Drivers that were woken while a successor ran, or after it."""
    checked: set[int] = field(default_factory=set[int])
    """Invariants that this schedule put to the test beyond those that each one does."""
    failures: list[str] = field(default_factory=list[str])

    def note(self, point: str, what: str) -> None:
        """Record that something struck."""
        self.strikes.setdefault(point, []).append(what)

    def facts(self) -> dict[str, Any]:
        """Return what the runtime told of its recoveries, summed up."""
        recoveries = [event for event in self.runtime if event["what"] == "recovery"]
        commits = [event for event in self.runtime if event["what"] == "commit"]
        return {
            "runs": self.runs,
            "replayed": sum(len(event["replayed"]) for event in recoveries),
            "restored": sum(len(event["restored"]) for event in recoveries),
            "rolled-forward": sum(event["was_rolled_forward"] for event in commits),
        }
