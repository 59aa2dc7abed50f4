"""The arguments of `waltz lag`. What it does is in `lag`; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Every, Output, Servers, Timeout, Watch, checked_every, checked_output
from waltz_log.cli.topic_completion import complete_topics

__all__ = ["add_lag"]


def lag(
    cluster: Servers,
    subscriber: Annotated[list[str] | None, typer.Option("--subscriber", help="A subscriber. Without any reader, all subscribers are shown.")] = None,
    checkpoint: Annotated[list[str] | None, typer.Option("--checkpoint", help="Checkpoint folder of a Spark query over the log.")] = None,
    table: Annotated[list[str] | None, typer.Option("--table", help="A Delta table that a pipeline fills; its own marks are read.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Show only the partitions of this topic.", autocompletion=complete_topics)] = None,
    watch: Watch = False,
    every: Every = 2.0,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Show how many transactions readers are behind: subscribers, Spark queries by their checkpoints, tables by their marks."""
    from waltz_log.cli.topics import lag as command

    asked = command.Asked(subscriber or (), checkpoint or (), table or (), topic)
    every_s = checked_every(watch, every)
    return asyncio.run(command.run(cluster, asked, output=checked_output(output), every_s=every_s, timeout_s=timeout))


def add_lag(app: typer.Typer) -> None:
    app.command()(lag)
