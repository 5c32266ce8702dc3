"""The sidecar's process: from its start to its end."""

import asyncio
import logging
import logging.handlers
import os
from pathlib import Path

from statekeep.clock import Clock, SystemClock
from statekeep.spark.sidecar.launch import SidecarLock, has_ended, sweep_dead_sidecars
from statekeep.spark.sidecar.paths import SidecarPaths, SidecarSpec
from statekeep.spark.sidecar.server import SidecarServer
from statekeep.spark.sidecar.work import SidecarWork
from statekeep.stores.task_directory import sweep_unused

logger = logging.getLogger("statekeep.spark.sidecar")

_LOG_BYTES = 10 * 1024 * 1024


def run(directory: Path, descriptor: int, given: bytes) -> None:
    """Serve until the sidecar is no longer needed; ends the process.

    Args:
        directory: Where the sidecar lives.
        descriptor: Of its lock, which the task that started it has taken.
        given: A `SidecarSpec` as JSON.
    """
    os.umask(0o077)  # whatever it writes, for whichever library: log, outbox, restored state
    paths = SidecarPaths(directory)
    lock = SidecarLock(paths, descriptor)
    handler = logging.handlers.RotatingFileHandler(paths.log, maxBytes=_LOG_BYTES, backupCount=1)
    logging.basicConfig(
        level=logging.INFO,
        handlers=[handler],
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    status = 1
    try:
        spec = SidecarSpec.decode(given)
        if not has_ended(paths, spec.session):
            paths.socket.unlink(missing_ok=True)
            clock = SystemClock()
            sweep_dead_sidecars(paths, spec.app_id, clock.time_ns())
            sweep_unused(Path(spec.local_dir), clock.time_ns())
            asyncio.run(_serve(paths, spec, clock))
        status = 0
    except TimeoutError:
        logger.warning("the sidecar ended while a blocking call was running")
    except Exception:
        logger.exception("the sidecar failed")
    finally:
        lock.leave()
        logging.shutdown()
        # Threads that are still in a call of a client library are not waited for.
        os._exit(status)  # the end of a process of our own: there is no caller to return to


async def _serve(paths: SidecarPaths, spec: SidecarSpec, clock: Clock) -> None:
    work = SidecarWork(spec, clock)
    server = SidecarServer(paths, work, clock, work.config.container)
    await server.run(spec.jvm_pid, lambda: not has_ended(paths, spec.session))
