"""The arguments of `waltz subscriber`. `subscribers` does the work; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import DryRun, Every, Output, Servers, Timeout, Watch, checked_every, checked_output

__all__ = ["subscribers_app"]

subscribers_app = typer.Typer(help="List, set and remove subscribers of the log.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the subscriber, as `waltz subscriber list` shows it.")]


@subscribers_app.command(name="list")
def listing(cluster: Servers, watch: Watch = False, every: Every = 2.0, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Show the subscribers of this principal, and all to an operator: marks, lag, and when each was last seen."""
    from waltz_log.cli.topics import subscribers as command

    return asyncio.run(command.listing(cluster, output=checked_output(output), every_s=checked_every(watch, every), timeout_s=timeout))


@subscribers_app.command(name="set")
def place(
    cluster: Servers,
    name: Name,
    to: Annotated[
        str,
        typer.Option("--to", metavar="earliest|latest|ID|TIME", help="The next transaction that it reads. TIME: 2026-11-25T14:30:00, or 15m."),
    ],
    partitions: Annotated[str | None, typer.Option("--partition", "-p", metavar="3,5-7", help="Log partitions (default: all that it reads).")] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Move a stopped subscriber forward or backward. It cannot be before the first retained transaction."""
    from waltz_log.cli.topics import subscribers as command

    return asyncio.run(command.place(cluster, name, partitions, to, dry_run=dry_run, output=checked_output(output), timeout_s=timeout))


@subscribers_app.command()
def remove(cluster: Servers, name: Name, dry_run: DryRun = False, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Remove a subscriber, so that retention keeps nothing for it. If it still runs, its next report is refused."""
    from waltz_log.cli.topics import subscribers as command

    return asyncio.run(command.remove(cluster, name, dry_run=dry_run, output=checked_output(output), timeout_s=timeout))
