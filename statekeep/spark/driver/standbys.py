"""Copies of tasks on other hosts: which executor has one, and where tasks go whose executor is gone."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from statekeep.checkpoint.records import CommitRecord
from statekeep.spark.driver.recovery import task_commit
from statekeep.spark.worker.job_spec import FollowPlan

logger = logging.getLogger(__name__)

Copies = Mapping[int, tuple[str, ...]]
"""``{task: executors that keep its newest commit}``, without the one that runs it."""


class Standbys:
    """Has executors follow the commits of tasks that run on others; by the thread that runs batches."""

    def __init__(self, copies: int) -> None:
        """Begin without any.

        Args:
            copies: ``job.standbytasks.replication.factor``.
        """
        self.are_wanted = copies > 1
        self._others = copies - 1
        self._copies: Copies = {}
        self._homes: Mapping[int, str] = {}
        """Where each task ran when copies were asked for."""
        self._asked_for: tuple[int, Copies] | None = None
        self._is_warned = False

    def plan(
        self,
        commit: CommitRecord | None,
        slots: Sequence[Sequence[int]],
        executors: Mapping[int, str],
        disks: Mapping[str, str],
        bad_markers: Collection[tuple[str, str, str, str]],
    ) -> FollowPlan | None:
        """Return what executors are to fetch; None if they were asked for all of it.

        Args:
            commit: The newest one.
            slots: The tasks of each slot.
            executors: Where each task has run last.
            disks: ``{executor: disk}`` as `local_disk` says it.
            bad_markers: Never used as a source.
        """
        if not self.are_wanted or commit is None or len(executors) < sum(map(len, slots)):
            return None
        copies = chosen(executors, disks, self._others, self._copies)
        self._warn(executors, disks, copies)
        if not copies or self._asked_for == (commit.batch, copies):
            return None
        first_slots: dict[str, int] = {}
        for slot, tasks in enumerate(slots):
            if tasks:
                first_slots.setdefault(executors[tasks[0]], slot)
        wanted = {
            slot: (
                name,
                {
                    task: found
                    for task, names in copies.items()
                    if name in names and (found := task_commit(commit, task)).version
                },
            )
            for name, slot in first_slots.items()
        }
        self._copies = copies
        return FollowPlan(
            commit.batch,
            {slot: (name, tasks) for slot, (name, tasks) in wanted.items() if tasks},
            tuple(bad_markers),
        )

    def have_been_asked(self, plan: FollowPlan, executors: Mapping[int, str]) -> None:
        """Take note that the batch which had the plan is processed."""
        self._asked_for = (plan.batch, self._copies)
        self._homes = dict(executors)

    def slots_after_loss(
        self,
        slots: Sequence[tuple[int, ...]],
        executors: Mapping[int, str],
        lost: Collection[int],
    ) -> list[tuple[int, ...]] | None:
        """Return slots in which tasks are where their copies lie; None if no task goes elsewhere.

        A slot that has run on another executor than before has lost its executor. Of several operators
        only one may have told so yet: the others' tasks of that slot go too.

        Args:
            slots: The tasks of each slot.
            executors: Where each task has run last, be it that it had no state there.
            lost: Tasks that had none.
        """
        if not self._homes:
            return None
        gone = {
            slot
            for slot, tasks in enumerate(slots)
            if any(t in lost and executors[t] != self._homes[t] for t in tasks)
        }
        now_at = {
            slot: executors[next((t for t in tasks if t in lost), tasks[0])]
            for slot, tasks in enumerate(slots)
            if tasks
        }
        found = [list(tasks) for tasks in slots]
        for slot in gone:
            for task in slots[slot]:
                copies = self._copies.get(task, ())
                there = [s for s, name in now_at.items() if name in copies]
                if now_at[slot] not in copies and there:
                    found[slot].remove(task)
                    min((found[s] for s in there), key=len).append(task)
        after = [tuple(tasks) for tasks in found]
        return None if after == list(slots) else after

    def _warn(self, executors: Mapping[int, str], disks: Mapping[str, str], copies: Copies) -> None:
        """Say once where copies are not where they should be."""
        if self._is_warned or any(not disks.get(name) for name in executors.values()):
            return  # an executor has not written anything yet
        if any(len(copies.get(task, ())) < self._others for task in executors):
            self._is_warned = True
            logger.warning(
                "there are fewer local disks than copies of each task: "
                "job.standbytasks.replication.factor=%d disks=%d",
                self._others + 1,
                len({disks[name] for name in executors.values()}),
            )
        elif any(
            _host(disks[name]) == _host(disks[executors[task]])
            for task, names in copies.items()
            for name in names
        ):
            self._is_warned = True
            logger.warning(
                "copies of some tasks lie on the host where these tasks run, as there are too few hosts"
            )


def chosen(
    executors: Mapping[int, str], disks: Mapping[str, str], others: int, before: Copies
) -> dict[int, tuple[str, ...]]:
    """Return which executors are to have a copy of each task: on another disk, and host if there is one.

    A copy stays where it is unless that executor has more than its share. The copies of the tasks of one
    executor are spread over the others, so that its loss is shared out.

    Args:
        executors: Where each task runs.
        disks: ``{executor: disk}`` as `local_disk` says it; one that is not there, or "", is not known.
        others: How many copies each task is to have; fewer where there are fewer disks.
        before: Where copies are.
    """
    live = sorted({name for name in executors.values() if disks.get(name)})
    if not live:
        return {}
    share = -(-len(executors) * others // len(live))
    load, load_of = Counter[str](), Counter[tuple[str, str]]()
    found: dict[int, tuple[str, ...]] = {}
    for task, own in sorted(executors.items()):
        names: list[str] = []
        taken = {disks.get(own, "")}
        while len(names) < others and "" not in taken:
            possible = [name for name in live if disks[name] not in taken]
            if not possible:
                break
            hosts = set(map(_host, taken))
            best = min(
                possible,
                key=lambda name: (
                    _host(disks[name]) in hosts,
                    load[name] >= share,
                    name not in before.get(task, ()),
                    load_of[own, name],
                    load[name],
                    name,
                ),
            )
            names.append(best)
            taken.add(disks[best])
            load[best] += 1
            load_of[own, best] += 1
        if names:
            found[task] = tuple(sorted(names))
    return found


def _host(disk: str) -> str:
    return disk.rpartition("/")[0]
