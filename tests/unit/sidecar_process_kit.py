"""A sidecar's parts on a scratch directory, and requests for them."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

import statekeep
from statekeep.checkpoint.checkpoints import CheckpointId, CheckpointV2
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.spark.sidecar.paths import NO_JVM, SidecarPaths, SidecarSpec
from statekeep.spark.sidecar.protocol import (
    SIDECAR,
    TASK,
    Hello,
    OtherVersion,
    Proof,
    SubmitVersion,
    Welcome,
    decode_greeting,
    encode_frame,
    is_proof,
    job_key,
    proof,
    read_frame_from,
)

VERSION = "0_0123456789abcdef"


def spec_in(root: Path, **settings: str) -> SidecarSpec:
    return SidecarSpec(
        job_name="j",
        job_uid="u",
        local_name="j-u",
        operator="main",
        settings={
            "job.name": "j",
            "stores.backup.factories": "blob",
            "blob.store.uri": f"file://{root}/blobs",
            **settings,
        },
        stores=["state"],
        log_backend="blob",
        local_dir=str(root / "local"),
        app_id="app",
        executor_id="1",
        jvm_pid=NO_JVM,
        python_path=[str(Path(statekeep.__file__).parents[1])],
        session="a1",
    )


def paths_in(root: Path) -> SidecarPaths:
    paths = SidecarPaths(root / "sidecar")
    paths.prepare()
    return paths


def submit_versions(attempt: int = 1, partition: int = 0, version: str = VERSION) -> SubmitVersion:
    checkpoint = encode_checkpoint_v2(CheckpointV2(CheckpointId(7, attempt), {}, {}))
    return SubmitVersion(
        epoch=1,
        attempt=attempt,
        partition=partition,
        version=version,
        checkpoint=msgspec.Raw(checkpoint),
    )


def submit_slot(*partitions: int, attempt: int = 1) -> SubmitVersion:
    """Return one request for the versions of several tasks."""
    first, *others = (submit_versions(attempt, partition) for partition in partitions)
    return msgspec.structs.replace(
        first,
        others=tuple(
            OtherVersion(partition=o.partition, version=o.version, checkpoint=o.checkpoint)
            for o in others
        ),
    )


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until the condition holds."""
    while not condition():
        await asyncio.sleep(0)


def greet_task(connection: socket.socket, stream: BinaryIO, paths: SidecarPaths) -> None:
    """Greet a task as the sidecar of ``paths`` does."""
    key = job_key(paths)
    connection.sendall(encode_frame(Hello(nonce="n")))
    given = decode_greeting(read_frame_from(stream))
    assert isinstance(given, Proof)
    assert is_proof(given.proof, key, TASK, "n", given.nonce)
    connection.sendall(encode_frame(Welcome(proof=proof(key, SIDECAR, "n", given.nonce))))
