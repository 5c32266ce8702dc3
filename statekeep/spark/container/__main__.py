"""``python -m statekeep.spark.container DIRECTORY``: start the container that lives there."""

import asyncio
import logging
import logging.handlers
import os
import sys
from pathlib import Path

import msgspec

from statekeep.clock import SystemClock
from statekeep.spark.container.launch import take_lock
from statekeep.spark.container.place import ContainerPlace, ContainerSpec
from statekeep.spark.container.server import ContainerServer
from statekeep.spark.container.work import ContainerWork

_LOG_BYTES = 10 * 1024 * 1024


def main(directory: Path) -> None:
    """Leave the launcher behind, take the lock, and serve."""
    if os.fork() > 0:
        return
    place = ContainerPlace(directory)
    handler = logging.handlers.RotatingFileHandler(place.log, maxBytes=_LOG_BYTES, backupCount=1)
    logging.basicConfig(
        level=logging.INFO,
        handlers=[handler],
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    with place.lock.open("w") as lock:
        if not take_lock(lock):
            logging.getLogger(__name__).info("a container is here already: directory=%s", directory)
            return
        place.socket.unlink(missing_ok=True)
        spec = msgspec.json.decode(place.spec.read_bytes(), type=ContainerSpec)
        try:
            asyncio.run(_serve(place, spec))
        except Exception:
            logging.getLogger(__name__).exception("the container failed")
            raise


async def _serve(place: ContainerPlace, spec: ContainerSpec) -> None:
    clock = SystemClock()
    work = ContainerWork(spec, clock)
    await ContainerServer(place, work, clock, work.config.container.grace_ms).run(spec.jvm_pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
