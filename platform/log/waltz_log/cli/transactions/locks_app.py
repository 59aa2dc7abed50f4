"""The arguments of `waltz lock`. `locks` does the work; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Every, Output, Servers, Timeout, Watch, checked_every, checked_output

__all__ = ["locks_app"]

locks_app = typer.Typer(help="Show locks and their conflicts.", no_args_is_help=True)


@locks_app.callback()
def locks() -> None:
    """Show locks and their conflicts."""


@locks_app.command(name="list")
def listing(
    cluster: Servers,
    partitions: Annotated[str | None, typer.Option("--partition", "-p", metavar="3,5-7", help="Log partitions (default: all).")] = None,
    lock: Annotated[list[str] | None, typer.Option("--lock", metavar="name:key", help="Show only this lock. May be repeated.")] = None,
    watch: Watch = False,
    every: Every = 2.0,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Show the locks that conflicted. For each, the last transaction that wrote it; for each partition, how many it remembers and what waits."""
    from waltz_log.cli.transactions import locks as command
    from waltz_log.cli.transactions.transactions import parse_locks

    chosen, every_s = parse_locks("--lock", lock or ()), checked_every(watch, every)
    return asyncio.run(command.listing(cluster, partitions, chosen, output=checked_output(output), every_s=every_s, timeout_s=timeout))
