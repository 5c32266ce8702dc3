"""Takes the job log away, spoils a record of it, and gives it back."""

import random
import shutil
from pathlib import Path

from chaos.spark.frames import read_frame


class LostLog:
    """The log of one schedule, as files. Nothing of the job runs."""

    def __init__(self, scope: Path, kept: Path, draw: random.Random) -> None:
        """Take where things are.

        Args:
            scope: Directory that holds ``log`` and ``log-floor``.
            kept: Where what is lost is kept, to be given back.
            draw: Chooses what is damaged.
        """
        self._scope = scope
        self._kept = kept
        self._draw = draw
        self._damaged: Path | None = None
        self.damaged_position: int | None = None
        """The record that was spoilt."""
        self.is_batch_damaged = False
        """Whether a job may go on over it: batch records can be made again."""

    def lose(self) -> bool:
        """Lose every record; False if there is none."""
        if not (self._scope / "log").is_dir():
            return False
        self._kept.mkdir(parents=True)
        for path in self._directories():
            shutil.move(path, self._kept / path.name)
        return True

    def damage(self) -> bool:
        """Flip a bit of one record that counts; False if there is none."""
        floors = [int(path.name) for path in self._scope.glob("log-floor/[0-9]*")]
        records = sorted(self._scope.glob("log/[0-9]*.json"))
        records = [path for path in records if int(path.stem) >= max(floors, default=0)]
        if not records:
            return False
        path = self._draw.choice(records)
        self.is_batch_damaged = read_frame(path)["type"] == "batch"
        self._kept.mkdir(parents=True)
        shutil.copy(path, self._kept / path.name)
        data = bytearray(path.read_bytes())
        start = data.index(b"\n") + 1
        data[self._draw.randrange(start, len(data))] ^= 1 << self._draw.randrange(7)
        temporary = path.with_name(f".tmp-{path.name}")
        temporary.write_bytes(data)
        temporary.replace(path)
        self._damaged, self.damaged_position = path, int(path.stem)
        return True

    def give_back(self) -> None:
        """Undo the loss: the job refused to go on without."""
        if self._damaged is not None:
            shutil.copy(self._kept / self._damaged.name, self._damaged)
        else:
            for path in self._directories():
                shutil.rmtree(path)
            for path in self._kept.iterdir():
                shutil.move(path, self._scope / path.name)
        shutil.rmtree(self._kept)

    def _directories(self) -> list[Path]:
        return [path for path in (self._scope / "log", self._scope / "log-floor") if path.is_dir()]
