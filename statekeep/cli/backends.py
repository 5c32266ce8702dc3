"""``statekeep backends``: which ones the job has, and whether they can do what is asked."""

import asyncio
from collections.abc import Awaitable
from dataclasses import asdict

import typer

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.preparation import prepare
from statekeep.backends.registry import BackendRegistry
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.cli.exit_status import ExitStatus
from statekeep.cli.options import (
    AsJson,
    JobOptions,
    shared_options,
)
from statekeep.cli.output import JsonValue, print_json, print_table, state_of
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError, RetriableError
from statekeep.inspection.job import open_log_storage

app = typer.Typer(
    name="backends", help="The state backends that the settings name.", no_args_is_help=True
)


@app.command("list")
@shared_options
def list_backends(
    *,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """List the backends, with factory and properties."""
    settings = options.settings()
    rows: list[dict[str, JsonValue]] = [
        {
            "backend": name,
            "factory": settings.backend_factory(name),
            "stores": [
                store
                for store in settings.store_names
                if name in settings.store(store).backup_factories
            ],
            **asdict(factory.properties),
        }
        for name, factory in _factories(settings).items()
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["backend", "factory", "needs", "durable", "job log"],
        [
            [
                row["backend"],
                row["factory"],
                ",".join(part for part in ("files", "changes") if row[f"needs_{part}"]),
                _yes(row["is_durable"]),
                _yes(row["can_hold_job_log"]),
            ]
            for row in rows
        ],
    )


@app.command()
@shared_options
def check(
    *,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """Check that each backend can be used.

    Does it exist, is access allowed, can it do what is needed and hold the job log? Creates what is missing, as a start of the job does.
    """
    findings = asyncio.run(_check_all(options.settings()))
    if as_json:
        print_json([{"backend": name, "error": error} for name, error in findings.items()])
    else:
        print_table(
            ["backend", "state"],
            [[name, state_of(error)] for name, error in findings.items()],
            prose={"state"},
        )
    if any(findings.values()):
        raise typer.Exit(ExitStatus.UNAVAILABLE)


def _factories(config: Config) -> dict[BackendName, StateBackendFactory]:
    factories = dict(BackendRegistry(config).factories())
    if not factories:
        raise ConfigError(
            "the settings name no backend",
            key="stores.backup.factories",
            hint="give the settings of the job with --config or --set",
        )
    return factories


async def _check_all(config: Config) -> dict[str, str | None]:
    """Return what is wrong with each backend that the start of the job prepares."""
    factories, clock = _factories(config), SystemClock()
    async with open_log_storage(config, clock) as storage, waiting("asking the backends", clock):
        factories |= storage.factories
        found: dict[str, str | None] = {}
        for name, factory in factories.items():
            found[name] = await _problem_of(prepare(factory.admin(storage.executor, clock)))
            if found[name] is None and name == storage.log_backend:
                found[name] = await _problem_of(storage.log.probe())
        return found


async def _problem_of(checking: Awaitable[None]) -> str | None:
    try:
        await checking
    except (ConfigError, RetriableError) as exc:
        return "; ".join([str(exc), *getattr(exc, "__notes__", ())])
    return None


def _yes(value: JsonValue) -> str:
    return "yes" if value else "no"
