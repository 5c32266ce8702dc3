"""``statekeep import``: a job that goes on where a query on Spark's own operator has stopped."""

from importlib import import_module
from typing import Annotated, Any

import typer

from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    SettingOptions,
    shared_options,
)
from statekeep.cli.output import print_json, print_line
from statekeep.errors import ConfigError


@shared_options
def import_query(
    location: Annotated[
        str, typer.Argument(help="The checkpoint location of the query, which must not run.")
    ],
    *,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout-conf",
            metavar="NAME",
            help="The timeoutConf of applyInPandasWithState, if the query has one.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark's master; left out: as spark-submit says."),
    ] = None,
    spark_setting: Annotated[
        list[str] | None,
        typer.Option("--spark-set", metavar="KEY=VALUE", help="A setting of the Spark session."),
    ] = None,
    options: SettingOptions,
    as_json: AsJson = False,
) -> None:
    """Take over a query of Spark's own operator.

    That is transformWithState or applyInPandasWithState. Its program then starts on Statekeep with the same checkpoint location, and goes on with the next batch. Until then nothing in the location is changed.
    """
    settings = options.settings()
    pairs = [given.partition("=") for given in spark_setting or ()]
    for key, equals, _ in pairs:
        if not equals:
            raise ConfigError(f"no setting of Spark: --spark-set {key}", hint="write KEY=VALUE")
    session_settings = {key: value for key, _, value in pairs}
    importer: Any = import_module("statekeep.spark.state_import")
    with explained_temporary_files():
        made = importer.import_by_command(
            location, settings, timeout, master=master, session_settings=session_settings
        )
    if as_json:
        print_json(
            {
                "job": made.job_name,
                "batch": made.batch,
                "variables": list(made.variables),
                "tasks": len(made.entries),
                "entries": sum(made.entries),
            }
        )
    else:
        print_line(
            f"job {made.job_name}: batch {made.batch}, {sum(made.entries)} entries of "
            f"{','.join(made.variables)} in {len(made.entries)} tasks"
        )
