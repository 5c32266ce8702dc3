"""``statekeep stores``: what a snapshot is made of."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.tree import Tree

from statekeep.backends.optional_powers import SnapshotNode
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
from statekeep.inspection.snapshots import bytes_of, snapshot_of

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
                return position, [await snapshot_of(job, commit, name, store) for name in names]

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
        f"total: {size_of(sum(map(bytes_of, nodes)))} in tasks: {len(shown)}{without}"
        if nodes
        else "the commit has no such task"
    )


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
