"""``statekeep stores``: what a snapshot is made of."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.tree import Tree

from statekeep.backends.base import TaskIdentity
from statekeep.backends.optional_powers import DescribesSnapshots, SnapshotNode
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName, TaskName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord
from statekeep.cli.job_reading import read_job, tasks_of
from statekeep.cli.options import (
    AsJson,
    IsFull,
    JobOptions,
    LogOfTask,
    Which,
    shared_options,
)
from statekeep.cli.output import (
    WIDTH,
    JsonValue,
    console,
    print_json,
    print_line,
    shortened,
    size_of,
)
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.inspection.job import InspectedJob

app = typer.Typer(
    name="stores", help="The stores of a job and their snapshots.", no_args_is_help=True
)

_INDENT: Final = 4
"""What the tree puts before a line for each level."""
_LEAST_FACTS: Final = 20


@app.command()
@shared_options
def show(
    which: Which = None,
    *,
    store: Annotated[str | None, typer.Option(help="Only this store.")] = None,
    of_task: Annotated[
        str | None, typer.Option("--only", metavar="NAME", help="Only this task of the commit.")
    ] = None,
    options: JobOptions,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Show the snapshot of each store as a tree.

    At one commit: files, deltas, sizes, lineage. `statekeep verify --count` counts the entries.
    """

    async def run() -> tuple[int, list[SnapshotNode]]:
        async with read_job(options.settings(), SystemClock(), task=task) as job:
            position, commit = job.find_commit(which)
            names = [name for name in tasks_of(commit) if of_task in (None, name)]
            async with job.held(position), waiting("reading the snapshots", job.clock):
                return position, [await _task(job, commit, name, store) for name in names]

    position, nodes = asyncio.run(run())
    if as_json:
        print_json({"commit": position, "tasks": [_as_json(node) for node in nodes]})
        return
    shown = [node for node in nodes if node.parts or is_full]
    tree = Tree(f"commit {position}", highlight=False)
    _grow(tree, shown, width=None if is_full else WIDTH - _INDENT)
    console().print(tree)
    without = f", {len(nodes) - len(shown)} more without state" if len(shown) < len(nodes) else ""
    print_line(
        f"total: {size_of(sum(map(_bytes_of, nodes)))} in tasks: {len(shown)}{without}"
        if nodes
        else "the commit has no such task"
    )


async def _task(
    job: InspectedJob, commit: CommitRecord, task: TaskName, only: str | None
) -> SnapshotNode:
    checkpoint = job.checkpoint(commit, task)
    found = [] if checkpoint is None else sorted(checkpoint.state_markers.items())
    identity = TaskIdentity(
        commit.identity.job_name, MAIN_OPERATOR, task, job_uid=commit.identity.job_uid
    )
    parts = [
        SnapshotNode(
            store,
            None,
            {"backend": backend},
            tuple(await _parts(job, identity, backend, store, marker)),
        )
        for backend, stores in found
        for store, marker in sorted(stores.items())
        if only in (None, store)
    ]
    return SnapshotNode(task, None, {"version": commit.versions.get(task) or "empty"}, tuple(parts))


async def _parts(
    job: InspectedJob,
    task: TaskIdentity,
    backend: BackendName,
    store: StoreName,
    marker: Marker,
) -> Sequence[SnapshotNode]:
    factory = job.storage.factories.get(backend)
    if factory is None or not isinstance(factory, DescribesSnapshots):
        return [SnapshotNode("marker", None, {"marker": marker})]
    return await factory.describe(task, store, marker, job.executor, job.clock)


def _grow(tree: Tree, nodes: Sequence[SnapshotNode], *, width: int | None) -> None:
    """Add the parts below a node, each in a line of at most ``width`` characters."""
    for node in nodes:
        name = node.name if width is None else shortened(node.name, width // 2)
        size = "" if node.size is None else f"  {size_of(node.size)}"
        facts = " ".join(f"{name}={_plain(value)}" for name, value in node.facts.items() if value)
        if width is not None:
            facts = shortened(facts, max(_LEAST_FACTS, width - len(name) - len(size) - 2))
        shown = f"  [dim]{escape(facts)}[/]" if facts else ""
        below = None if width is None else width - _INDENT
        _grow(tree.add(f"{escape(name)}{size}{shown}"), node.parts, width=below)


def _plain(value: str | int | Sequence[str]) -> str:
    return str(value) if isinstance(value, str | int) else ",".join(value)


def _bytes_of(node: SnapshotNode) -> int:
    """Return the size of a node, or that of its parts where it has none of its own."""
    return sum(map(_bytes_of, node.parts)) if node.size is None else node.size


def _as_json(node: SnapshotNode) -> JsonValue:
    return {
        "name": node.name,
        "bytes": node.size,
        "facts": {
            name: value if isinstance(value, str | int) else list(value)
            for name, value in node.facts.items()
        },
        "parts": [_as_json(part) for part in node.parts],
    }
