"""Takes files away from a job that is not running, and gives the checkpoint location back."""

import random
import shutil
from pathlib import Path

from chaos.spark.places import Places
from chaos.spark.plan import Loss


class LostFiles:
    """What was lost in one schedule. Nothing of the job runs, but for `wipe` of a host's disk."""

    def __init__(self, places: Places, seed: int) -> None:
        self._places = places
        self._draw = random.Random(f"losses-{seed}")  # noqa: S311 - replayable, not secret
        self._kept: list[Path] = []
        self._whole = places.root / "location-before-its-loss"
        self.location_loss: Loss | None = None
        """What the next run finds done to the location; None once it has answered."""
        self.is_location_rebuilt = False
        """Whether the location may lack files that Spark wrote."""

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
        if loss in {Loss.DISKS, Loss.ONE_DISK}:
            self.wipe(is_in_part=loss is Loss.ONE_DISK)
            return True
        checkpoint = self._places.checkpoint
        if not checkpoint.exists() or (loss is Loss.LOCATION_OLDER and not self._kept):
            return False
        shutil.rmtree(self._whole, ignore_errors=True)
        shutil.copytree(checkpoint, self._whole)
        self.location_loss, self.is_location_rebuilt = loss, True
        if loss is Loss.LOCATION_TAIL:
            self._cut_tail("offsets", 1)
            self._cut_tail("commits", 2)
            return True
        shutil.rmtree(checkpoint)
        if loss is Loss.LOCATION_OLDER:
            shutil.copytree(self._draw.choice(self._kept), checkpoint)
        return True

    def put_location_back(self) -> None:
        """Undo the loss of the location: the job refused to go on without."""
        shutil.rmtree(self._places.checkpoint, ignore_errors=True)
        shutil.copytree(self._whole, self._places.checkpoint)
        self.is_location_rebuilt = False

    def wipe(self, *, is_in_part: bool) -> None:
        """Delete the local state of all tasks, or of some of them, at least one."""
        tasks = sorted(self._places.local.glob("*/main/Partition_*"))
        if is_in_part and tasks:
            tasks = self._draw.sample(tasks, self._draw.randint(1, len(tasks)))
        for task in tasks:
            shutil.rmtree(task, ignore_errors=True)

    def _cut_tail(self, log: str, count: int) -> None:
        directory = self._places.checkpoint / log
        numbers = sorted(int(path.name) for path in directory.glob("[0-9]*"))
        for number in numbers[-count:]:
            (directory / str(number)).unlink()
            (directory / f".{number}.crc").unlink(missing_ok=True)
