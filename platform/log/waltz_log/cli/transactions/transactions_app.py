"""The arguments of `waltz append`, `waltz read` and `waltz trace`. What they do is in `transactions` and `trace`. Imports next to nothing, like
`main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.arguments import Cluster, Output, checked_output

__all__ = ["add_transactions"]

TopicOption = Annotated[str | None, typer.Option("--topic", help="namespace/topic. Without it, --partition is a partition of the log.")]
Key = Annotated[str | None, typer.Option(help="Key of the transaction; it decides the partition. Only in a keyed topic.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Partition of the topic, or of the log.")]
Principal = Annotated[str | None, typer.Option(help="Name to state to topics that restrict access.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the cluster.")]


def append(
    cluster: Cluster,
    data: Annotated[str | None, typer.Argument(help="Text to append. Without it, each line of standard input becomes a transaction.")] = None,
    topic: TopicOption = None,
    key: Key = None,
    partition: Partition = None,
    header: Annotated[int, typer.Option(help="Header of the transaction: a number that the application chooses.")] = 0,
    delete: Annotated[bool, typer.Option("--delete", help="Append a tombstone, which removes the key.")] = False,
    principal: Principal = None,
    timeout: Timeout = 30.0,
) -> int:
    """Append transactions, and print their partition and transaction id."""
    from waltz_log.cli.transactions import transactions as command

    place = command.Place(topic, key, partition)
    return asyncio.run(command.append(cluster, data, place, header=header, delete=delete, principal=principal, timeout_s=timeout))


def read(
    cluster: Cluster,
    topic: TopicOption = None,
    key: Key = None,
    partition: Partition = None,
    after: Annotated[int | None, typer.Option(min=-1, help="Start after this transaction id. By default, start at the first retained one.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after this many transactions.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new transactions until Ctrl-C.")] = False,
    compacted: Annotated[bool, typer.Option("--compacted", help="Read the newest value of each key of a compaction topic, then the log.")] = False,
    output: Output = "table",
    principal: Principal = None,
    timeout: Timeout = 30.0,
) -> int:
    """Show transactions of the log, one line for each. With --output json, one JSON object per line."""
    from waltz_log.cli.transactions import transactions as command

    place = command.Place(topic, key, partition)
    options = {"after": after, "limit": limit, "follow": follow, "compacted": compacted, "output": checked_output(output)}
    return asyncio.run(command.read(cluster, place, **options, principal=principal, timeout_s=timeout))  # type: ignore[arg-type]


def trace(
    cluster: Cluster,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="Of the log.")],
    transaction: Annotated[int, typer.Option("--transaction", "-t", min=0, help="The transaction id.")],
    table: Annotated[str | None, typer.Option("--table", help="A Delta table: also show which of its versions holds the transaction.")] = None,
    output: Output = "table",
    principal: Principal = None,
    timeout: Timeout = 30.0,
) -> int:
    """Show who sent a transaction, when, in which block it is, and which replicas and which table version hold it."""
    from waltz_log.cli.transactions import trace as command

    return asyncio.run(
        command.run(cluster, partition, transaction, table=table, output=checked_output(output), principal=principal, timeout_s=timeout)
    )


def add_transactions(app: typer.Typer) -> None:
    for command in (append, read, trace):
        app.command()(command)
