"""The ways to move a store's directory to an S3 server and back that `blob_transfer` compares."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import boto3
from servers.process import find_program

from statekeep.backends.awaiting import run_all
from statekeep.backends.base import BackupContext, CommitContext, RestoreContext, TaskIdentity
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobMetadata
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
    VersionId,
)
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.stores.factory import open_to_load
from statekeep.stores.version import FileEntry, SealedVersion, SealManifest, image_path
from statekeep.testing.blob_store_tests import ignore_bytes

BUCKET = "statekeep-bench"
BLOB = BackendName("blob")
STORE = StoreName("state")
IMAGE = image_path(STORE)
"""Where `Job.source` lies below the version that `statekeep_commit` backs up."""
_THREADS = 16
_FEW_THREADS = 2
_TASK = TaskIdentity("bench", "main", TaskName("Partition 0"))
_METADATA = BlobMetadata(task=None, store_name=None, payload_name="bench")
_CHECKPOINT_ID = CheckpointId(0, 1)


@dataclass(frozen=True)
class Job:
    """One directory to move, and where the server is."""

    version: Path
    """Holds the files below `IMAGE`."""
    target: Path
    """A directory that is empty before each download."""
    endpoint: str

    @property
    def source(self) -> Path:
        return self.version / IMAGE

    @property
    def files(self) -> list[Path]:
        return sorted(self.source.iterdir())

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    @property
    def markers(self) -> Path:
        """Where an upload tells the download, another process, what it made."""
        return self.target.with_name("markers.json")


def _factory(job: Job, prefix: str) -> BlobBackendFactory:
    return BlobBackendFactory(BLOB, {"uri": f"s3://{BUCKET}/{prefix}", "s3.endpoint": job.endpoint})


async def _move_files(job: Job, threads: int, *, is_upload: bool) -> None:
    executor = BoundedExecutor(threads, "bench")
    factory = _factory(job, f"statekeep-{threads}")
    manager = factory.blob_store_manager(executor, SystemClock())
    await manager.init()
    if is_upload:
        await run_all([manager.put(path.name, path, _METADATA) for path in job.files])
    else:
        names = [path.name for path in job.files]
        await run_all(
            [
                manager.download(n, job.target / n, ignore_bytes, max_bytes=MAX_FILE_BYTES)
                for n in names
            ]
        )
    await manager.close()
    await executor.close()


def statekeep(job: Job, *, is_upload: bool, threads: int = _THREADS) -> None:
    """Our client alone, file by file: with the sha-256 of all that comes down."""
    asyncio.run(_move_files(job, threads, is_upload=is_upload))


async def _back_up(job: Job, executor: BoundedExecutor) -> None:
    version = VersionId(1, "1" * 32)
    # Sealed beforehand: a commit does not read the files for it either.
    entries = tuple(FileEntry(**entry) for entry in json.loads(_entries(job.version).read_text()))
    manifest = SealManifest(version, None, (), "bench", "main", _TASK.task_name, entries)
    context = CommitContext(
        _CHECKPOINT_ID, 1, 1, SealedVersion(job.version, manifest), base=None, base_version=None
    )
    contexts = {_CHECKPOINT_ID: context}
    manager = _factory(job, "commit").backup_manager(
        BackupContext(_TASK, (STORE,), contexts.__getitem__, executor, SystemClock())
    )
    await manager.init()
    markers = await manager.upload(_CHECKPOINT_ID, manager.snapshot(_CHECKPOINT_ID))
    job.markers.write_text(json.dumps(dict(markers)))
    await manager.close()


async def _restore(job: Job, executor: BoundedExecutor) -> None:
    markers = {StoreName(s): Marker(m) for s, m in json.loads(job.markers.read_text()).items()}
    job.target.rmdir()
    context = RestoreContext(
        task=_TASK,
        directories={STORE: job.target},
        reusable=(),
        open_store=lambda name, directory: open_to_load(name, "rocksdb", directory, is_new=True),
        open_image=lambda name, directory: open_to_load(name, "rocksdb", directory, is_new=False),
        on_bytes=ignore_bytes,
        on_total=ignore_bytes,
        executor=executor,
        clock=SystemClock(),
    )
    manager = _factory(job, "commit").restore_manager(context)
    await manager.init(CheckpointV2(_CHECKPOINT_ID, {}, {BLOB: markers}))
    await manager.restore()
    await manager.close()


async def _commit_or_restore(job: Job, *, is_upload: bool) -> None:
    executor = BoundedExecutor(_THREADS, "bench")
    await (_back_up if is_upload else _restore)(job, executor)
    await executor.close()


def statekeep_commit(job: Job, *, is_upload: bool) -> None:
    """The whole of a commit's upload and of a restore: packs, index, every file verified."""
    asyncio.run(_commit_or_restore(job, is_upload=is_upload))


def seal(version: Path) -> None:
    """Note of each file below `IMAGE` what a seal manifest holds."""
    entries = [
        {
            "path": f"{IMAGE}/{path.name}",
            "size": path.stat().st_size,
            "crc32": crc32(path.read_bytes()),
        }
        for path in sorted((version / IMAGE).iterdir())
    ]
    _entries(version).write_text(json.dumps(entries))


def _entries(version: Path) -> Path:
    return version.with_name("entries.json")


def plain_boto3(job: Job, *, is_upload: bool) -> None:
    """The SDK's own transfers, four files at a time."""
    client = boto3.client("s3", endpoint_url=job.endpoint)

    def move(path: Path) -> None:
        key = f"boto3/{path.name}"
        if is_upload:
            client.upload_file(str(path), BUCKET, key)
        else:
            client.download_file(BUCKET, key, str(job.target / path.name))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, job.files))


def obstore(job: Job, *, is_upload: bool) -> None:
    """The Rust client, four files at a time."""
    from obstore.store import S3Store  # noqa: PLC0415  # may be missing

    store = S3Store(
        BUCKET, endpoint=job.endpoint, client_options={"allow_http": True}, prefix="obstore"
    )

    def move(path: Path) -> None:
        if is_upload:
            store.put(path.name, path)
            return
        with (job.target / path.name).open("wb") as file:
            for chunk in store.get(path.name).stream(8 << 20):
                file.write(chunk)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, job.files))


def s5cmd(job: Job, *, is_upload: bool) -> None:
    remote = f"s3://{BUCKET}/s5cmd/"
    ends = [f"{job.source}/", remote] if is_upload else [f"{remote}*", f"{job.target}/"]
    _run("s5cmd", "--endpoint-url", job.endpoint, "cp", *ends)


def rclone(job: Job, *, is_upload: bool) -> None:
    remote = f":s3,provider=SeaweedFS,env_auth=true,endpoint='{job.endpoint}':{BUCKET}/rclone"
    ends = [str(job.source), remote] if is_upload else [remote, str(job.target)]
    # A copy that is there already would not be sent again.
    _run("rclone", "copy", "--ignore-times", "--transfers=8", "--config=/dev/null", *ends)


def _run(program: str, *arguments: str) -> None:
    path = find_program(program)
    if path is None:
        raise FileNotFoundError(program)
    subprocess.run([path, *arguments], check=True, stdout=subprocess.DEVNULL)


TOOLS: dict[str, Callable[..., None]] = {
    "statekeep": statekeep,
    "statekeep-2-threads": partial(statekeep, threads=_FEW_THREADS),
    "statekeep-commit": statekeep_commit,
    "boto3": plain_boto3,
    "obstore": obstore,
    "s5cmd": s5cmd,
    "rclone": rclone,
}
