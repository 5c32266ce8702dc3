"""``statekeep import``: a job that goes on where a query on Spark's own operator has stopped."""

from importlib import import_module
from typing import Annotated, Any

import typer

from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    SettingOptions,
    SparkMaster,
    SparkSettings,
    shared_options,
    spark_settings,
)
from statekeep.cli.output import print_json, print_line


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
    master: SparkMaster = None,
    spark_setting: SparkSettings = None,
    options: SettingOptions,
    as_json: AsJson = False,
) -> None:
    """Take over a query of Spark's own operator.

    That is transformWithState or applyInPandasWithState. Its program then starts on Statekeep with the same checkpoint location, and goes on with the next batch. Until then nothing in the location is changed.
    """
    settings, session_settings = options.settings(), spark_settings(spark_setting)
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
