"""A progress bar for a Spark job that keeps people waiting: a restore, a replay."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final, Protocol

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_SHOWN_AFTER_S: Final = 2.0
_PERIOD_S: Final = 0.5


class Background(Protocol):
    """Runs coroutines beside a blocking call; `Reign` is one."""

    def watch(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Start a coroutine; return what ends it."""
        ...


@contextmanager
def job_bar(
    spark: SparkSession, background: Background, description: str, console: Console | None = None
) -> Generator[None]:
    """Show how many tasks of the running Spark job are done, once it has lasted two seconds.

    Nothing is shown where stderr is no terminal.

    Args:
        spark: The session that runs the job on this thread, inside the block.
        background: Where the bar is drawn while this thread waits.
        description: What people wait for.
        console: Where to draw; None: stderr.
    """
    target = Console(stderr=True) if console is None else console
    if not target.is_terminal:
        yield
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
        console=target,
        auto_refresh=False,
        transient=True,
    )
    row = bar.add_task(description, total=None)

    async def draw() -> None:
        await asyncio.sleep(_SHOWN_AFTER_S)
        bar.start()
        while True:
            done, total = _tasks_of_newest_job(spark)
            bar.update(row, completed=done, total=total)
            bar.refresh()
            await asyncio.sleep(_PERIOD_S)

    stop = background.watch(draw)
    try:
        yield
    finally:
        stop()
        bar.stop()


def _tasks_of_newest_job(spark: SparkSession) -> tuple[int, int | None]:
    """Return completed and all tasks of the stage that runs now; a local look-up."""
    tracker = spark.sparkContext.statusTracker()
    for job in sorted(tracker.getActiveJobsIds(), reverse=True):
        info = tracker.getJobInfo(job)
        for stage in sorted(info.stageIds if info is not None else [], reverse=True):
            found = tracker.getStageInfo(stage)
            if found is not None and found.numTasks:
                return found.numCompletedTasks, found.numTasks
    return 0, None
