"""The arguments of `waltz topic`. What it does stands in `topics`; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.outputs import Output, checked_output

__all__ = ["topics_app"]

topics_app = typer.Typer(help="Names over log partitions, and what was agreed for each.", no_args_is_help=True)

Cluster = Annotated[str, typer.Argument(help="host:port[,host:port]/root")]
Name = Annotated[str, typer.Argument(help="namespace/topic")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be, change nothing.")]
Policies = Annotated[list[str] | None, typer.Option("--policy", metavar="name=value", help="May be repeated; `waltz topic describe` shows them all.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the coordinator.")]


PROPERTY_HELP = "For the whole topic, or for a range of its partitions: 0-3:allow-read=reports. May be repeated; never changes."


@topics_app.command()
def create(
    cluster: Cluster,
    name: Name,
    partitions: Annotated[int | None, typer.Option(min=1, help="How many; it stays so. 16 unless log partitions are named.")] = None,
    type: Annotated[str, typer.Option(help="regular or compaction")] = "regular",
    keyed: Annotated[bool, typer.Option("--keyed", help="Transactions begin with a key; those of a compaction topic always do.")] = False,
    properties: Annotated[list[str] | None, typer.Option("--property", metavar="[range:]name=value", help=PROPERTY_HELP)] = None,
    policies: Policies = None,
    log_partitions: Annotated[str | None, typer.Option(metavar="3,5-7", help="Which log partitions; any that are empty by default.")] = None,
    existing_data: Annotated[
        str | None,
        typer.Option(metavar="keep|discard", help="What becomes of data in the partitions named. keep: they never lose anything; discard: removed."),
    ] = None,
    discard_transactions: Annotated[
        int | None, typer.Option(min=0, help="Confirms how many transactions --existing-data discard removes; --dry-run shows the number.")
    ] = None,
    dry_run: DryRun = False,
    timeout: Timeout = 10.0,
) -> int:
    """Make a topic over log partitions that are empty. One that is there already is left as it is if it is the same, and refused if not."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(
        command.create(
            cluster,
            name,
            partitions=partitions,
            type=type,
            keyed=keyed,
            properties=properties or [],
            policies=policies or [],
            log_partitions=log_partitions,
            existing=existing_data,
            discards=discard_transactions,
            dry_run=dry_run,
            timeout_s=timeout,
        )
    )


@topics_app.command(name="list")
def listing(cluster: Cluster, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Show the topics there are."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(command.listing(cluster, output=checked_output(output), timeout_s=timeout))


@topics_app.command()
def describe(cluster: Cluster, name: Name, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Show all about one topic: ids, partitions, properties, policies and what they mean for what is acknowledged."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(command.describe(cluster, name, output=checked_output(output), timeout_s=timeout))


@topics_app.command(name="alter-policy")
def alter_policy(cluster: Cluster, name: Name, policies: Policies = None, dry_run: DryRun = False, timeout: Timeout = 10.0) -> int:
    """Change policies of a topic."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(command.alter_policy(cluster, name, policies or [], dry_run=dry_run, timeout_s=timeout))


@topics_app.command()
def delete(cluster: Cluster, name: Name, dry_run: DryRun = False, timeout: Timeout = 10.0) -> int:
    """Forget a topic's name. What is in its log partitions goes, but for what subscribers have not read; then they are free for another topic."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(command.delete(cluster, name, dry_run=dry_run, timeout_s=timeout))
