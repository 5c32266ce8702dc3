"""A driver that an executor joins, whose disk is empty: ``python joining_driver.py ROOT``.

It runs the stream in ROOT on executors with disks of their own. One is taken away, and later another one
is asked for. From then on the backend does not answer what reads state, for some batches. It says at the
end what was delivered, and which batches meanwhile.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame
from spark_processes import (
    ask_for_executor,
    await_loss,
    executors_of,
    take_executor_away,
    wait_until,
)
from standby_driver import OnDisks, hosts_of, session
from traced_manager import held

import statekeep as sk
from statekeep.spark.driver import task_moves

EXECUTORS = 2
TAKEN, JOINED, BATCHES = 1, 2, 22
MEANWHILE = 3
"""Batches that are to be delivered while the state of tasks that are to move does not come."""


def main(root: Path) -> None:  # noqa: PLR0915 - what the sink does is one story
    spark = session(root / "disks", EXECUTORS)
    spark.sparkContext.setLogLevel("ERROR")
    settings = {
        "task.commit.ms": 1,
        "stores.backup.factories": "blob",
        "blob.store.uri": f"file://{root}/blobs",
        "blob.store.manager.factory": "traced_manager.make_manager",
    }
    stream = OnDisks(spark, root, settings)
    context = spark.sparkContext
    sign = held(root / "blobs")
    queries: list[sk.StatefulStreamingQuery] = []
    meanwhile: list[int] = []
    executors: dict[int, dict[str, int]] = {}
    task_moves._ASK_AGAIN_NS = 0  # type: ignore[misc]

    def is_calm() -> bool:
        """Whether what runs beside the batches has ended, but for the fetch."""
        job = queries[0]._job
        rebalancer = job._owned.rebalancer
        assert rebalancer is not None
        warm_up, move = rebalancer._warm_up, rebalancer.move
        return (
            job._owned.commits.open_batch is None
            and (warm_up is None or warm_up.running.done())
            and (move is None or not move.is_asking)
        )

    def look(batch: int) -> None:
        assert wait_until(lambda: bool(queries))
        if batch == TAKEN and batch not in executors:
            executors[batch] = where()
            take_executor_away(context, min(executors[batch]))
            await_loss(context, min(executors[batch]))
        if batch == JOINED:
            executors[batch] = where()
            sign.touch()
            ask_for_executor(context)
        if batch > JOINED:
            assert wait_until(is_calm)
            rebalancer = queries[0]._job._owned.rebalancer
            move = None if rebalancer is None else rebalancer.move
            if move is not None and move.job is not None and sign.exists():
                meanwhile.append(batch)
                if len(meanwhile) == MEANWHILE:
                    sign.unlink()
                    versions = queries[0]._job._owned.batches.versions(move.batch)
                    assert wait_until(
                        lambda: all(
                            hosts_of(root / "disks", task, versions[task])
                            - executors[JOINED].keys()
                            for task in move.tasks
                        )
                    )

    def where() -> dict[str, int]:
        places = executors_of(queries[0]._job).values()
        return dict(Counter(place["executor"] for place in places))

    deliver = stream.sink

    def sink(frame: DataFrame, batch: int) -> None:
        deliver(frame, batch)
        look(batch)
        if batch == BATCHES - 1:
            executors[batch] = where()

    stream.sink = sink  # type: ignore[method-assign]
    queries.append(stream.start())
    queries[0].awaitTermination()
    moved = [e for e in queries[0].events if e.kind == "tasks-moved"]
    recoveries = [e.details for e in queries[0].events if e.kind == "recovery"]
    said = {
        "delivered": [batch for batch, _ in stream.delivered],
        "received": stream.received(),
        "meanwhile": meanwhile,
        "executors": executors,
        "moved": [event.details["tasks"] for event in moved],
        "restored": [sorted(found["restored"]) for found in recoveries][-1],
        "uri": settings["blob.store.uri"],
    }
    sys.stdout.write(json.dumps(said) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
