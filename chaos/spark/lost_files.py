"""Takes files away from a job that is not running, and gives back what it cannot do without."""

import os
import random
import shutil
from collections.abc import Collection
from contextlib import suppress
from glob import escape
from pathlib import Path

from chaos.spark.lost_log import LostLog
from chaos.spark.places import Places
from chaos.spark.plan import Damage, Loss
from statekeep.testing.faults import Action, ArmedFault
from statekeep.testing.faults.process_faults import corrupt_one

REFUSALS = {
    Loss.LOCATION: "CheckpointLocationError",
    Loss.LOCATION_TAIL: "CheckpointLocationError",
    Loss.LOCATION_OLDER: "CheckpointLocationError",
    Loss.LOG: "CheckpointLocationError",
    Loss.LOG_RECORD: "CheckpointCorruptError",
}
"""How a job may refuse to go on after a loss: what was lost is then put back."""


class LostFiles:
    """What was lost in one schedule. Nothing of the job runs, but for `wipe` of a host's disk."""

    def __init__(self, places: Places, seed: int, log_scope: Path | None) -> None:
        """Take where files are.

        Args:
            places: Of the schedule.
            seed: Decides what is lost where there is a choice.
            log_scope: Directory of the job log; None where it is not in files.
        """
        self._places = places
        self._draw = random.Random(f"losses-{seed}")  # noqa: S311 - replayable, not secret
        self._damage_draw = random.Random(f"damage-{seed}")  # noqa: S311 - replayable, too
        self._log_scope = log_scope
        self._log: LostLog | None = None
        self._kept: list[Path] = []
        self._whole = places.root / "location-before-its-loss"
        self.unanswered: Loss | None = None
        """What the next run finds lost, and may refuse to go on without."""
        self.is_location_rebuilt = False
        """Whether the location may lack files that Spark wrote."""

    @property
    def damaged_position(self) -> int | None:
        """The record of the log that was spoilt last."""
        return None if self._log is None else self._log.damaged_position

    def keep_location(self) -> None:
        """Keep the checkpoint location as it is now, should it be swapped for this later."""
        target = self._places.root / "older" / str(len(self._kept))
        try:
            shutil.copytree(self._places.checkpoint, target)
        except shutil.Error:
            shutil.rmtree(target)  # Spark renamed a file meanwhile
        else:
            self._kept.append(target)

    def lose(self, loss: Loss) -> bool:
        """Lose something; False if there is nothing of the kind."""
        match loss:
            case Loss.DISKS | Loss.ONE_DISK:
                self.wipe(is_in_part=loss is Loss.ONE_DISK)
                return True
            case Loss.LOG | Loss.LOG_RECORD:
                return self._lose_log(loss)
            case Loss.EVENTS:
                return self._lose_events()
            case _:
                return self._lose_location(loss)

    def put_back(self) -> None:
        """Undo the loss that the job refused to go on with."""
        if self.unanswered in {Loss.LOG, Loss.LOG_RECORD}:
            assert self._log is not None  # noqa: S101 - it was lost
            self._log.give_back()
        else:
            shutil.rmtree(self._places.checkpoint, ignore_errors=True)
            shutil.copytree(self._whole, self._places.checkpoint)
            self.is_location_rebuilt = False
        self.unanswered = None

    def must_refuse(self) -> bool:
        """Whether the job must not go on with what the next run finds lost."""
        if self.unanswered is Loss.LOG_RECORD:
            return self._log is not None and not self._log.is_batch_damaged
        return self.unanswered is Loss.LOG

    def wipe(self, *, is_in_part: bool) -> None:
        """Delete the local state of all tasks, or of some of them, at least one."""
        tasks = sorted(self._places.local.glob("*/main/Partition_*"))
        if is_in_part and tasks:
            tasks = self._draw.sample(tasks, self._draw.randint(1, len(tasks)))
        for task in tasks:
            shutil.rmtree(task, ignore_errors=True)

    def damage(self, damage: Damage, backup: Path, blobs: Collection[str]) -> None:
        """Damage some of the blobs of a place, and delete all local state.

        Args:
            damage: What to do.
            backup: Where the place keeps everything.
            blobs: Those that it needs, by their names; not empty.
        """
        chosen = self._damage_draw.sample(sorted(blobs), min(damage.blobs, len(blobs)))
        for name in chosen:
            path = escape(str(backup / name))
            truncated = damage.is_truncated
            corrupt_one(
                ArmedFault(name, "backup", Action.CORRUPT, path=path, is_truncated=truncated)
            )
        self.wipe(is_in_part=False)

    def age(self, seconds: int) -> None:
        """Let all files of state, local and backed up, be older than they are."""
        for root in (self._places.local, self._places.backups):
            for parent, directories, names in os.walk(root):
                for path in (Path(parent, name) for name in (*directories, *names)):
                    with suppress(FileNotFoundError):  # a sidecar has ended meanwhile
                        time_s = path.lstat().st_mtime - seconds
                        os.utime(path, (time_s, time_s), follow_symlinks=False)

    def _lose_log(self, loss: Loss) -> bool:
        if self._log_scope is None or not any(self._places.checkpoint.glob("commits/[0-9]*")):
            return False
        kept = self._places.root / "log-before-its-loss"
        shutil.rmtree(kept, ignore_errors=True)  # of a damaged record that the job went on over
        self._log = LostLog(self._log_scope, kept, self._draw)
        is_lost = self._log.lose() if loss is Loss.LOG else self._log.damage()
        self.unanswered = loss if is_lost else None
        return is_lost

    def _lose_events(self) -> bool:
        scope = self._log_scope
        found = sorted(scope.glob("checkpoints/events-*")) if scope is not None else []
        for path in found:
            shutil.rmtree(path)
        return bool(found)

    def _lose_location(self, loss: Loss) -> bool:
        checkpoint = self._places.checkpoint
        if not checkpoint.exists() or (loss is Loss.LOCATION_OLDER and not self._kept):
            return False
        shutil.rmtree(self._whole, ignore_errors=True)
        shutil.copytree(checkpoint, self._whole)
        self.unanswered, self.is_location_rebuilt = loss, True
        if loss is Loss.LOCATION_TAIL:
            self._cut_tail("offsets", 1)
            self._cut_tail("commits", 2)
            return True
        shutil.rmtree(checkpoint)
        if loss is Loss.LOCATION_OLDER:
            shutil.copytree(self._draw.choice(self._kept), checkpoint)
        return True

    def _cut_tail(self, log: str, count: int) -> None:
        directory = self._places.checkpoint / log
        numbers = sorted(int(path.name) for path in directory.glob("[0-9]*"))
        for number in numbers[-count:]:
            (directory / str(number)).unlink()
            (directory / f".{number}.crc").unlink(missing_ok=True)
