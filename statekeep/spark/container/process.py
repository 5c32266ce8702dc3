"""The container's process: from its start to its end."""

import asyncio
import logging
import logging.handlers
import os
from collections.abc import Callable
from pathlib import Path

from statekeep.clock import Clock, SystemClock
from statekeep.spark.container.launch import ContainerLock, sweep_dead_containers
from statekeep.spark.container.paths import ContainerPaths, ContainerSpec
from statekeep.spark.container.server import ContainerServer
from statekeep.spark.container.work import ContainerWork
from statekeep.stores.task_directory import sweep_unused

logger = logging.getLogger("statekeep.spark.container")

_LOG_BYTES = 10 * 1024 * 1024


def run(directory: Path, descriptor: int, given: bytes) -> None:
    """Serve until the container is no longer needed; ends the process.

    Args:
        directory: Where the container lives.
        descriptor: Of its lock, which the task that started it has taken.
        given: A `ContainerSpec` as JSON.
    """
    os.umask(0o077)  # whatever it writes, for whichever library: log, outbox, restored state
    paths = ContainerPaths(directory)
    lock = ContainerLock(paths, descriptor)
    handler = logging.handlers.RotatingFileHandler(paths.log, maxBytes=_LOG_BYTES, backupCount=1)
    logging.basicConfig(
        level=logging.INFO,
        handlers=[handler],
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    status = 1
    try:
        if lock.is_wanted:
            paths.socket.unlink(missing_ok=True)
            spec = ContainerSpec.decode(given)
            clock = SystemClock()
            sweep_dead_containers(paths, spec.app_id, clock.time_ns())
            sweep_unused(Path(spec.local_dir), clock.time_ns())
            asyncio.run(_serve(paths, spec, clock, lambda: lock.is_wanted))
        status = 0
    except TimeoutError:
        logger.warning("the container ended while a blocking call was running")
    except Exception:
        logger.exception("the container failed")
    finally:
        lock.leave()
        logging.shutdown()
        # Threads that are still in a call of a client library are not waited for.
        os._exit(status)  # the end of a process of our own: there is no caller to return to


async def _serve(
    paths: ContainerPaths, spec: ContainerSpec, clock: Clock, is_wanted: Callable[[], bool]
) -> None:
    work = ContainerWork(spec, clock)
    server = ContainerServer(paths, work, clock, work.config.container)
    await server.run(spec.jvm_pid, is_wanted)
