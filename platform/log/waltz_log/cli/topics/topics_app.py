"""The arguments of `waltz topic`. `topics` does the work; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import DryRun, Every, Output, Servers, Timeout, Watch, checked_every, checked_output
from waltz_log.cli.topic_completion import complete_topics

__all__ = ["topics_app"]

topics_app = typer.Typer(help="Create, inspect and change topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="namespace/topic.", autocompletion=complete_topics)]
Policies = Annotated[
    list[str] | None, typer.Option("--policy", metavar="name=value", help="A policy to set; `waltz topic describe` lists them. May be repeated.")
]


PROPERTY_HELP = "A property of the topic, or of a range of its partitions: 0-3:allow-read=reports. Cannot change later. May be repeated."


@topics_app.command()
def create(
    cluster: Servers,
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions; cannot change later. By default half of those that no topic uses.")
    ] = None,
    type: Annotated[str, typer.Option(help="regular or compaction (keeps the newest value of each key).")] = "regular",
    keyed: Annotated[bool, typer.Option("--keyed", help="Transactions start with a key. Always so in a compaction topic.")] = False,
    properties: Annotated[list[str] | None, typer.Option("--property", metavar="[range:]name=value", help=PROPERTY_HELP)] = None,
    policies: Policies = None,
    log_partitions: Annotated[str | None, typer.Option(metavar="3,5-7", help="Log partitions to use. By default, any empty ones.")] = None,
    existing_data: Annotated[
        str | None,
        typer.Option(
            metavar="keep|discard",
            help="What to do with data in these log partitions. keep: retention never removes anything from them; discard: remove it.",
        ),
    ] = None,
    discard_transactions: Annotated[
        int | None, typer.Option(min=0, help="Number of transactions that --existing-data discard may remove, as a confirmation; --dry-run shows it.")
    ] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Create a topic on empty log partitions. Succeeds without a change if the same topic exists; fails if a different one does."""
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
            output=checked_output(output),
            timeout_s=timeout,
        )
    )


@topics_app.command(name="list")
def listing(cluster: Servers, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """List the topics that this certificate may see."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(command.listing(cluster, output=checked_output(output), timeout_s=timeout))


@topics_app.command()
def describe(cluster: Servers, name: Name, watch: Watch = False, every: Every = 2.0, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Show one topic: ids, partitions, properties, policies, and what an acknowledgment means under them."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(command.describe(cluster, name, output=checked_output(output), every_s=checked_every(watch, every), timeout_s=timeout))


@topics_app.command(name="alter-policy")
def alter_policy(
    cluster: Servers, name: Name, policies: Policies = None, dry_run: DryRun = False, output: Output = "table", timeout: Timeout = 10.0
) -> int:
    """Change policies of a topic."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(command.alter_policy(cluster, name, policies or [], dry_run=dry_run, output=checked_output(output), timeout_s=timeout))


@topics_app.command()
def delete(cluster: Servers, name: Name, dry_run: DryRun = False, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Delete a topic. Its data is removed as soon as all subscribers have read it; then the log partitions are free for another topic."""
    from waltz_log.cli.topics import topics as command

    return asyncio.run(command.delete(cluster, name, dry_run=dry_run, output=checked_output(output), timeout_s=timeout))
