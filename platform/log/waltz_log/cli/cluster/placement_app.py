"""The arguments of `waltz drain`, `waltz rebalance` and `waltz owner`. Imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Coordinator, DryRun, Output, Timeout, checked_output

__all__ = ["add_placement"]

owner_app = typer.Typer(help="Decide which log server owns a partition.", no_args_is_help=True)

Partitions = Annotated[str, typer.Argument(metavar="PARTITIONS", help="Log partitions: numbers and ranges, such as 3,5-7.")]
Wait = Annotated[
    float, typer.Option("--wait", min=0.0, help="Seconds to wait for each partition. A move that was started continues if the wait ends first.")
]
AtOnce = Annotated[int, typer.Option("--at-once", min=1, max=32, help="How many partitions move at the same time.")]


def drain(
    coordinator: Coordinator,
    node: Annotated[str, typer.Argument(help="Name of a storage node, or number or address of a log server.")],
    undo: Annotated[bool, typer.Option("--undo", help="Readmit a drained node.")] = False,
    at_once: AtOnce = 2,
    dry_run: DryRun = False,
    output: Output = "table",
    wait: Wait = 3600.0,
    timeout: Timeout = 10.0,
) -> int:
    """Empty a node while the cluster is in use: a server loses its partitions, a storage node its replicas. If it was killed, repeat it."""
    from waltz_log.cli.cluster import drain as command

    shown = checked_output(output)
    if undo:
        return asyncio.run(command.undo(coordinator, node, dry_run=dry_run, output=shown, timeout_s=timeout))
    return asyncio.run(command.drain(coordinator, node, at_once=at_once, dry_run=dry_run, output=shown, wait_s=wait, timeout_s=timeout))


def rebalance(
    coordinator: Coordinator, at_once: AtOnce = 2, dry_run: DryRun = False, output: Output = "table", wait: Wait = 3600.0, timeout: Timeout = 10.0
) -> int:
    """Move replicas until the storage nodes hold about equally many, for example after one was added. If it was killed, repeat it."""
    from waltz_log.cli.cluster import drain as command

    return asyncio.run(
        command.rebalance(coordinator, at_once=at_once, dry_run=dry_run, output=checked_output(output), wait_s=wait, timeout_s=timeout)
    )


@owner_app.command()
def move(
    coordinator: Coordinator,
    partitions: Partitions,
    to: Annotated[str, typer.Argument(help="Number or address of the log server.")],
    dry_run: DryRun = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Move partitions to a server. They stay with it, and return to it after its restart. Others may move to keep the servers' shares equal."""
    from waltz_log.cli.cluster import owner as command

    return asyncio.run(command.move(coordinator, partitions, to, dry_run=dry_run, output=checked_output(output), timeout_s=timeout))


@owner_app.command()
def release(
    coordinator: Coordinator,
    partitions: Annotated[str, typer.Argument(metavar="PARTITIONS", help="Log partitions, such as 3,5-7, or all.")],
    dry_run: DryRun = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Let the cluster choose the owner of partitions again that were moved by hand."""
    from waltz_log.cli.cluster import owner as command

    return asyncio.run(command.release(coordinator, partitions, dry_run=dry_run, output=checked_output(output), timeout_s=timeout))


def add_placement(app: typer.Typer) -> None:
    app.command()(drain)
    app.command()(rebalance)
    app.add_typer(owner_app, name="owner")
