"""What a schedule is: the job that runs, what strikes it, and what follows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from chaos.fault_profile import FaultProfile
from statekeep.testing.faults.process_plan import Action, ArmedFault, ProcessKind


class Consequence(StrEnum):
    """What the harness does when a process has stopped itself at a fault point."""

    NONE = "none"
    """Nothing: the fault does all by itself."""
    EXECUTOR = "executor.killed"
    """SIGKILL to the executor's JVM and its Python workers, not to its sidecar."""
    HOST = "host.killed"
    """The same with its sidecar, and some tasks' local directories deleted."""
    DRIVER = "driver.killed"
    """SIGKILL to the driver's Python and JVM; executors and sidecars find out by themselves."""
    GROUP = "group.killed"
    """SIGKILL to every process of the application, sidecars included."""
    ZOMBIE_DRIVER = "driver.woken"
    """The driver stays stopped while a successor ends the job, and is woken then."""
    RIVAL_DRIVER = "driver.raced"
    """The driver is woken at the moment at which a successor begins: both write to one log."""
    ZOMBIE_SIDECAR = "sidecar.woken"
    """Its executor is killed; the sidecar is woken once the job has ended."""
    SLEEPY_SIDECAR = "sidecar.slept"
    """The sidecar is woken after some seconds."""


class Loss(StrEnum):
    """What happens to files between two runs."""

    DISKS = "disk.wiped"
    """All local state."""
    ONE_DISK = "disk.wiped-in-part"
    """The local state of some tasks."""
    LOCATION = "location.lost"
    """The whole checkpoint location."""
    LOCATION_TAIL = "location.truncated"
    """The newest files of ``offsets`` and ``commits``."""
    LOCATION_OLDER = "location.older"
    """The checkpoint location as it was at an earlier moment."""
    LOG = "log.lost"
    """The whole job log."""
    LOG_RECORD = "log.damaged"
    """A bit of one record of the job log."""
    EVENTS = "events.lost"
    """Everything that tells of progress, and of which nothing may depend."""


class Drift(StrEnum):
    """What was changed of a job that must not change, as the error calls it, before one more start."""

    KEY_TYPE = "grouping key"
    ROUTER = "router"


@dataclass(frozen=True, slots=True)
class BadDay:
    """One place misbehaves for some seconds: several commits meet it, and maybe a start."""

    profile: FaultProfile
    place: int
    """Which one of those that can; counted on from the first again beyond the last."""
    after_batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Damage:
    """Some blobs rot that one place needs for the newest commit; all local state is lost too."""

    place: int
    """As in `BadDay`."""
    blobs: int
    is_truncated: bool
    """Cut short, instead of a bit that flips."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault and what follows."""

    fault: ArmedFault
    consequence: Consequence = Consequence.NONE
    from_run: int = 1
    """Armed from this run of the job on: what strikes a recovery would strike any start."""

    @property
    def ends_driver(self) -> bool:
        """Whether another driver must go on once the fault has struck."""
        is_crash = self.fault.action is Action.CRASH and self.fault.kind is ProcessKind.DRIVER
        return is_crash or self.consequence in {
            Consequence.DRIVER,
            Consequence.GROUP,
            Consequence.ZOMBIE_DRIVER,
            Consequence.RIVAL_DRIVER,
        }


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that a seed decides."""

    seed: int
    source: str
    partitions: int
    batches: int
    rows: int
    settings: dict[str, str]
    is_every_batch: bool
    clock_offset_s: int
    """How far the clocks of every other run are off."""
    faults: Sequence[PlannedFault]
    losses: Sequence[Loss | None] = field(default_factory=list[Loss | None])
    """Before the second run, the third, ..."""
    downtime_s: int = 0
    """How long the job lies still before each further run, by every clock."""
    lost_answers: float = 0.0
    """Part of the calls to stores that take effect and answer an error."""
    servers_fail_after: int | None = None
    """The batch after which the servers of the places, if they have any, die and come back."""
    bad_day: BadDay | None = None
    damage: Damage | None = None
    """Before the second run, or the first one after it that finds a commit."""
    drift: Drift | None = None
    """What a last start tries to change."""
    modes: Sequence[str] = ("None",)
    """The time modes of the operators, in their order."""
    task_counts: Sequence[int] = ()
    """``task.count`` of each run, from the first one again beyond the last; none: `partitions`, always."""

    def task_count(self, run: int) -> int:
        """Return how many tasks an operator has after a run, counted from 1, that went well."""
        if not self.task_counts:
            return self.partitions
        return self.task_counts[(run - 1) % len(self.task_counts)]
