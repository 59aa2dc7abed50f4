"""The arguments of `waltz append`, `read`, `tail` and `trace`. The other modules of this folder implement them. Imports next to nothing, like
`main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Output, Servers, checked_output
from waltz_log.cli.topic_completion import complete_topics
from waltz_log.cli.transactions.printed_rows import FORMAT_HELP

__all__ = ["add_transactions"]

TopicOption = Annotated[
    str | None,
    typer.Option("--topic", help="namespace/topic. Without it, --partition is a partition of the log.", autocompletion=complete_topics),
]
Key = Annotated[str | None, typer.Option(help="Key of the transaction; it decides the partition. Only in a keyed topic.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Partition of the topic, or of the log.")]
Principal = Annotated[str | None, typer.Option(help="Principal to present to topics that restrict access.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the cluster's answer.")]

FromTime = Annotated[
    str | None, typer.Option("--from-time", help="Start at this time: 2026-11-25T14:30:00 (UTC without an offset), or a duration ago, such as 15m.")
]
Grep = Annotated[str | None, typer.Option("--grep", "-g", help="Show only transactions whose data contains this text.")]
Header = Annotated[int | None, typer.Option("--header", help="Show only transactions with this header.")]
Format = Annotated[str | None, typer.Option("--format", help=FORMAT_HELP)]


def append(
    cluster: Servers,
    data: Annotated[str | None, typer.Argument(help="Text to append. Without it, each line of standard input becomes a transaction.")] = None,
    topic: TopicOption = None,
    key: Key = None,
    partition: Partition = None,
    header: Annotated[int, typer.Option(help="Header of the transaction: a number that the application chooses.")] = 0,
    delete: Annotated[bool, typer.Option("--delete", help="Append a tombstone, which removes the key.")] = False,
    write_locks: Annotated[
        list[str] | None, typer.Option("--write-lock", metavar="name:key", help="Lock to check and to set. May be repeated.")
    ] = None,
    read_locks: Annotated[list[str] | None, typer.Option("--read-lock", metavar="name:key", help="Lock to check. May be repeated.")] = None,
    mark: Annotated[
        int | None, typer.Option("--mark", min=-1, help="Conflict if a lock was written after this transaction id. By default, after the connection.")
    ] = None,
    output: Output = "table",
    principal: Principal = None,
    timeout: Timeout = 30.0,
) -> int:
    """Append transactions, and print their partition and transaction id. Lines of a pipe are appended in bulk. Exit code 7 if a lock conflicts."""
    from waltz_log.cli.transactions import transactions as command

    write, read = command.parse_locks("--write-lock", write_locks or ()), command.parse_locks("--read-lock", read_locks or ())
    appending = command.Appending(header, delete, write, read, mark, checked_output(output))
    return asyncio.run(command.append(cluster, data, command.Place(topic, key, partition), appending, command.client_settings(principal, timeout)))


def read(
    cluster: Servers,
    topic: TopicOption = None,
    key: Key = None,
    partition: Partition = None,
    after: Annotated[int | None, typer.Option(min=-1, help="Start after this transaction id. By default, start at the first retained one.")] = None,
    from_time: FromTime = None,
    to_time: Annotated[str | None, typer.Option("--to-time", help="End before this time.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after this many transactions.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new transactions until Ctrl-C.")] = False,
    compacted: Annotated[bool, typer.Option("--compacted", help="Read the newest value of each key of a compaction topic, then the log.")] = False,
    grep: Grep = None,
    header: Header = None,
    template: Format = None,
    output: Output = "table",
    principal: Principal = None,
    timeout: Timeout = 30.0,
) -> int:
    """Show transactions of the log, one line for each. With --output json, one JSON object per line; with yaml, a stream of documents."""
    from waltz_log.cli.transactions import reading as command
    from waltz_log.cli.transactions.transactions import Place

    span = command.Span(after, from_time, to_time, follow, compacted)
    view = command.View(checked_output(output), template, grep, header)
    return asyncio.run(command.read(cluster, Place(topic, key, partition), span=span, limit=limit, view=view, principal=principal, timeout_s=timeout))


def tail(
    cluster: Servers,
    topic: TopicOption = None,
    key: Key = None,
    partition: Partition = None,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Show the last N matches first.")] = 10,
    from_time: FromTime = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for new transactions until Ctrl-C.")] = True,
    grep: Grep = None,
    header: Header = None,
    template: Format = None,
    output: Output = "table",
    principal: Principal = None,
    timeout: Timeout = 30.0,
) -> int:
    """Show the newest transactions of a topic, of a partition or of all of the log, and wait for more."""
    from waltz_log.cli.transactions import reading as command
    from waltz_log.cli.transactions.transactions import Place

    view = command.View(checked_output(output), template, grep, header)
    place = Place(topic, key, partition)
    return asyncio.run(
        command.tail(cluster, place, count=count, from_time=from_time, follow=follow, view=view, principal=principal, timeout_s=timeout)
    )


def trace(
    cluster: Servers,
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
    for command in (append, read, tail, trace):
        app.command()(command)
