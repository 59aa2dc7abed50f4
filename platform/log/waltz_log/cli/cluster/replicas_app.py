"""The arguments of `waltz cluster replica`. `replicas` does the work; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Coordinator, Every, Output, Timeout, Watch, checked_every, checked_output

__all__ = ["replicas_app"]

replicas_app = typer.Typer(help="Change which storage nodes hold a partition while it is in use.", no_args_is_help=True)

Partitions = Annotated[str, typer.Argument(metavar="PARTITIONS", help="Log partitions: numbers and ranges, such as 3,5-7, or all.")]
AtOnce = Annotated[int, typer.Option("--at-once", min=1, max=32, help="How many partitions change at the same time.")]
Added = Annotated[str, typer.Argument(help="Storage node that gets a replica.")]
Removed = Annotated[str, typer.Argument(help="Storage node that loses its replica.")]
Wait = Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to wait for completion. The change continues if the wait ends first.")]
Force = Annotated[bool, typer.Option("--force", help="Allow fewer than three replicas. Without it the command names the risk and stops.")]


@replicas_app.command(name="list")
def listing(coordinator: Coordinator, watch: Watch = False, every: Every = 2.0, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Show the replicas of each partition, and how many each storage node holds."""
    from waltz_log.cli.cluster import replicas as command

    return asyncio.run(command.listing(coordinator, output=checked_output(output), every_s=checked_every(watch, every), timeout_s=timeout))


@replicas_app.command()
def add(
    coordinator: Coordinator,
    partitions: Partitions,
    node: Added,
    at_once: AtOnce = 2,
    wait: Wait = 3600.0,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Add a replica to partitions. Returns when each holds the whole log and votes."""
    return _change(coordinator, partitions, node, None, output, at_once=at_once, wait_s=wait, timeout_s=timeout)


@replicas_app.command()
def remove(
    coordinator: Coordinator,
    partitions: Partitions,
    node: Removed,
    force: Force = False,
    at_once: AtOnce = 2,
    wait: Wait = 3600.0,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Remove a replica of partitions. Its data stays on its disk. Fewer than three put acknowledged transactions at risk and need --force."""
    return _change(coordinator, partitions, None, node, output, at_once=at_once, wait_s=wait, timeout_s=timeout, force=force)


@replicas_app.command()
def replace(
    coordinator: Coordinator,
    partitions: Partitions,
    old: Removed,
    new: Added,
    at_once: AtOnce = 2,
    wait: Wait = 3600.0,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Replace a replica of partitions. The new one is added before the old one is removed, unless the old one is gone already."""
    return _change(coordinator, partitions, new, old, output, at_once=at_once, wait_s=wait, timeout_s=timeout)


def _change(
    coordinator: str,
    partitions: str,
    added: str | None,
    removed: str | None,
    output: str,
    *,
    at_once: int,
    wait_s: float,
    timeout_s: float,
    force: bool = False,
) -> int:
    from waltz_log.cli.cluster import replicas as command

    return asyncio.run(
        command.run(
            coordinator,
            partitions,
            add=added,
            remove=removed,
            force=force,
            at_once=at_once,
            wait_s=wait_s,
            output=checked_output(output),
            timeout_s=timeout_s,
        )
    )
