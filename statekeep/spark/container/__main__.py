"""``python -m statekeep.spark.container DIRECTORY``: start the container that lives there.

What it is started with comes on standard input: a `ContainerSpec` as JSON.
"""

import asyncio
import logging
import logging.handlers
import os
import sys
from pathlib import Path

from statekeep.clock import Clock, SystemClock
from statekeep.spark.container.launch import sweep_dead_places, take_lock
from statekeep.spark.container.place import ContainerPlace, ContainerSpec
from statekeep.spark.container.server import ContainerServer
from statekeep.spark.container.work import ContainerWork

logger = logging.getLogger("statekeep.spark.container")

_LOG_BYTES = 10 * 1024 * 1024


def main(directory: Path) -> None:
    """Leave the launcher behind, take the lock, and serve."""
    given = sys.stdin.buffer.read()
    if os.fork() > 0:
        return
    _let_go_of_stdin()
    os.umask(0o077)  # whatever it writes, for whichever library: log, outbox, restored state
    place = ContainerPlace(directory)
    handler = logging.handlers.RotatingFileHandler(place.log, maxBytes=_LOG_BYTES, backupCount=1)
    logging.basicConfig(
        level=logging.INFO,
        handlers=[handler],
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    lock = take_lock(place)
    if lock is None:
        logger.info("a container is here already: directory=%s", directory)
        return
    status = 1
    try:
        place.prepare()
        place.socket.unlink(missing_ok=True)
        spec = ContainerSpec.decode(given)
        clock = SystemClock()
        sweep_dead_places(place, spec.app_id, clock.time_ns())
        asyncio.run(_serve(place, spec, clock))
        status = 0
    except TimeoutError:
        logger.warning("ended with a blocking call under way")
    except Exception:
        logger.exception("the container failed")
    finally:
        lock.leave()
        logging.shutdown()
        # Threads that are still in a call of a client library are not waited for.
        os._exit(status)  # the end of a process of our own, which has nobody to return to


def _let_go_of_stdin() -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)


async def _serve(place: ContainerPlace, spec: ContainerSpec, clock: Clock) -> None:
    work = ContainerWork(spec, clock)
    await ContainerServer(place, work, clock, work.config.container).run(spec.jvm_pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
