"""The arguments of `waltz outbox`. `outbox` implements the commands. Imports next to nothing, like `main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Output, checked_output

__all__ = ["outbox_app"]

outbox_app = typer.Typer(help="Inspect a service's outbox; retry or drop its dead letters.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="Directory of the outbox.")]
DeadIds = Annotated[list[int] | None, typer.Argument(help="Ids of dead letters.")]


@outbox_app.command()
def status(directory: Directory, output: Output = "table") -> int:
    """Show pending, undecided and dead intents. The service may run. Exit code 1 if an operator should act."""
    from waltz_log.cli.outbox import outbox as command

    return command.status(directory, output=checked_output(output))


@outbox_app.command(name="list")
def listing(
    directory: Directory,
    pending: Annotated[bool, typer.Option("--pending", help="Show the intents that are not appended yet instead.")] = False,
    output: Output = "table",
) -> int:
    """Show the dead letters. The service must be stopped."""
    from waltz_log.cli.outbox import outbox as command

    return command.listing(directory, pending=pending, output=checked_output(output))


@outbox_app.command()
def retry(
    directory: Directory,
    dead: DeadIds = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    data: Annotated[str | None, typer.Option(help="Append this data instead.")] = None,
    arguments: Annotated[str | None, typer.Option(help="Call the handler with these arguments instead, as JSON.")] = None,
    output: Output = "table",
) -> int:
    """Turn dead letters back into intents. The service must be stopped; it forwards them after its next start."""
    from waltz_log.cli.outbox import outbox as command

    return command.retry(directory, dead or [], everything=everything, data=data, arguments=arguments, output=checked_output(output))


@outbox_app.command()
def drop(
    directory: Directory,
    dead: DeadIds = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    output: Output = "table",
) -> int:
    """Delete dead letters permanently. The service must be stopped."""
    from waltz_log.cli.outbox import outbox as command

    return command.drop(directory, dead or [], everything=everything, output=checked_output(output))
