"""How often a task in plain Python asks its backends to delete."""

from pathlib import Path

import pytest
from container_kit import INPUT, config, controls

from statekeep.backends.memory import forget_place
from statekeep.container.container import Container
from statekeep.testing.clock import FakeClock

TASK = "Partition 0"


@pytest.mark.asyncio
async def test_backups_are_deleted_once_in_a_while_and_old_local_versions_after_each_commit(
    tmp_path: Path,
) -> None:
    clock, held = FakeClock(), controls(tmp_path)
    settings = config(tmp_path, checkpoint__clean__up__ms="120000")
    made: list[tuple[int, int]] = []
    async with Container(settings, clock=clock) as container:
        task = await container.start_task(TASK, ["s"])
        await task.wait()
        for number in range(13):
            clock.advance(10)
            task.store("s").put(b"number", b"%d" % number)
            await (await task.commit({INPUT: str(number)}, force=True)).wait()
            await task.wait()
            local = (tmp_path / "local" / "job" / "main" / "Partition_0").glob("[0-9]*_*")
            made.append((len(held.cleaned), len(list(local))))
    # The first run, which has nothing to delete, is that of the start.
    assert [cleaned for cleaned, _ in made] == [0] * 11 + [1] * 2
    assert max(versions for _, versions in made) <= 3
    (closed,) = held.cleaned
    assert len(closed) == 11  # the commit of the start, and twelve, less two that are retained
    forget_place(str(tmp_path))
