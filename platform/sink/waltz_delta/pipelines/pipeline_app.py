"""The arguments of `waltz pipeline`. `pipeline_check` implements it; like the command line of the log, this module imports next to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Output, checked_output

__all__ = ["pipeline_app"]

pipeline_app = typer.Typer(help="Check pipeline files before they run.", no_args_is_help=True, add_completion=False)

Files = Annotated[list[Path], typer.Argument(help="Pipeline files, or directories of them.")]


@pipeline_app.command()
def check(
    files: Files,
    spark: Annotated[bool, typer.Option("--spark", help="Start a local Spark (ten seconds) to resolve columns that need it.")] = False,
    output: Output = "table",
) -> int:
    """Check pipeline files: show each error with its line, or the columns of each table. Contacts no cluster. Exit code 2 if a file is wrong."""
    from waltz_delta.pipelines import pipeline_check as command

    return command.run(files, spark=spark, output=checked_output(output))


@pipeline_app.command()
def schema() -> int:
    """Print the JSON schema of pipeline files, for editors."""
    from waltz_delta.pipelines import pipeline_check as command

    return command.print_schema()
