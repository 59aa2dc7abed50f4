"""The arguments of `waltz cluster`. The other modules of this folder implement the commands. Imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.cluster.replicas_app import replicas_app
from waltz_log.cli.shared_arguments import Coordinator, DryRun, Every, Output, Timeout, Watch, checked_every, checked_output

__all__ = ["cluster_app"]

cluster_app = typer.Typer(help="Create, grow and inspect a cluster.", no_args_is_help=True)
cluster_app.add_typer(replicas_app, name="replica")


@cluster_app.command()
def create(
    coordinator: Coordinator,
    name: Annotated[str, typer.Option(help="A name for people; the cluster key identifies the cluster.")],
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions; `waltz cluster grow` adds more.")],
    storages: Annotated[str, typer.Option(help="Names of the storage nodes, separated by commas.")],
    replication: Annotated[int, typer.Option(min=1, help="Replicas of each partition.")] = 3,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing if the cluster exists already.")] = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Create a cluster. Fails if the cluster exists already."""
    from waltz_log.cli.cluster import cluster as command

    names, shown = [each.strip() for each in storages.split(",")], checked_output(output)
    return asyncio.run(
        command.create(
            coordinator,
            name=name,
            partitions=partitions,
            storages=names,
            replication=replication,
            if_missing=if_missing,
            output=shown,
            timeout_s=timeout,
        )
    )


@cluster_app.command()
def grow(
    coordinator: Coordinator,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions afterwards.")],
    storages: Annotated[str | None, typer.Option(help="Storage nodes for the new partitions, separated by commas. All nodes by default.")] = None,
    replication: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each new partition. By default as many as the existing partitions have.")
    ] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Add partitions to a log while the cluster runs. The number of partitions cannot decrease."""
    from waltz_log.cli.cluster import grow as command

    names = None if storages is None else [each.strip() for each in storages.split(",")]
    shown = checked_output(output)
    return asyncio.run(
        command.run(coordinator, partitions, storages=names, replication=replication, dry_run=dry_run, output=shown, timeout_s=timeout)
    )


@cluster_app.command()
def adopt(
    coordinator: Coordinator,
    nodes: Annotated[
        list[str],
        typer.Argument(metavar="NAME=DIRECTORY...", help="Each node with its directory, or the output of `waltz storage describe`."),
    ],
    name: Annotated[str, typer.Option(help="A name for people. The cluster key comes from the directories.")],
    missing: Annotated[
        list[str] | None,
        typer.Option(help="A node that held every partition and is not listed; recovery counts it as absent and waits for it if the vote needs it."),
    ] = None,
    restored: Annotated[
        bool, typer.Option("--restored", help="The coordinator was restored to an older state: keep its topics and replace the rest of its metadata.")
    ] = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Create the metadata of a cluster for storage directories that hold data, such as migrated ones. Start nodes and servers afterwards."""
    from waltz_log.cli.cluster import adopt as command

    shown = checked_output(output)
    return asyncio.run(command.run(coordinator, name=name, nodes=nodes, missing=missing or [], restored=restored, output=shown, timeout_s=timeout))


@cluster_app.command()
def repair(coordinator: Coordinator, dry_run: DryRun = False, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Write back what nodes know, where the coordinator lost a value or holds one that cannot be read or is older. Exit code 1 if a fault is left."""
    from waltz_log.cli.cluster import repair as command

    return asyncio.run(command.run(coordinator, dry_run=dry_run, output=checked_output(output), timeout_s=timeout))


@cluster_app.command()
def status(
    coordinator: Coordinator,
    output: Output = "table",
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait until the exit code is 0.")] = 0.0,
    complete: Annotated[bool, typer.Option("--complete", help="Also require that every node and worker answers and every replica counts.")] = False,
    watch: Watch = False,
    every: Every = 2.0,
    timeout: Timeout = 10.0,
) -> int:
    """Show owners, replicas and nodes. Exit code 3 if a partition has no owner, or no majority of replicas that accept appends."""
    from waltz_log.cli.cluster import cluster as command

    shown, every_s = checked_output(output), checked_every(watch, every)
    return asyncio.run(command.status(coordinator, output=shown, wait_s=wait, complete=complete, every_s=every_s, timeout_s=timeout))
