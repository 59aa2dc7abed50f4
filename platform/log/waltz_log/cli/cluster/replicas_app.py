"""The arguments of `waltz cluster replicas`. What it does stands in `replicas`; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.arguments import Cluster, Timeout

__all__ = ["replicas_app"]

replicas_app = typer.Typer(help="Change which storage nodes hold a partition while it is in use.", no_args_is_help=True)

Partition = Annotated[int, typer.Argument(min=0, help="Number of the log partition.")]
Added = Annotated[str, typer.Argument(help="Storage node that gets a replica.")]
Removed = Annotated[str, typer.Argument(help="Storage node that loses its replica.")]
Wait = Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to wait for completion. The change continues if the wait ends first.")]
Force = Annotated[bool, typer.Option("--force", help="Allow fewer than three replicas. Without it the command names the risk and stops.")]


@replicas_app.command()
def add(cluster: Cluster, partition: Partition, node: Added, wait: Wait = 3600.0, timeout: Timeout = 10.0) -> int:
    """Add a replica. Returns when it holds the whole log and votes."""
    return _change(cluster, partition, node, None, wait, timeout)


@replicas_app.command()
def remove(cluster: Cluster, partition: Partition, node: Removed, force: Force = False, wait: Wait = 3600.0, timeout: Timeout = 10.0) -> int:
    """Remove a replica. Its data stays on its disk. Fewer than three replicas put acknowledged transactions at risk and need --force."""
    return _change(cluster, partition, None, node, wait, timeout, force=force)


@replicas_app.command()
def replace(cluster: Cluster, partition: Partition, old: Removed, new: Added, wait: Wait = 3600.0, timeout: Timeout = 10.0) -> int:
    """Replace a replica. The new one is added before the old one is removed, unless the old one is gone already."""
    return _change(cluster, partition, new, old, wait, timeout)


def _change(cluster: str, partition: int, added: str | None, removed: str | None, wait_s: float, timeout_s: float, *, force: bool = False) -> int:
    from waltz_log.cli.cluster import replicas as command
    from waltz_log.core.replica_change import ReplicaChange

    return asyncio.run(command.run(cluster, ReplicaChange(partition, added, removed, force), wait_s=wait_s, timeout_s=timeout_s))
