"""The arguments of `waltz quota`. `quotas` does the work; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio

import typer

from waltz_log.cli.shared_arguments import Coordinator, Output, Timeout, checked_output

__all__ = ["quotas_app"]

quotas_app = typer.Typer(help="Show how much principals may append and mount.", no_args_is_help=True)


@quotas_app.callback()
def quotas() -> None:
    """Show how much principals may append and mount."""


@quotas_app.command(name="list")
def listing(coordinator: Coordinator, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Show the quotas of each log server, and how often it refused a client that was over one. The first rule that fits applies."""
    from waltz_log.cli.topics import quotas as command

    return asyncio.run(command.listing(coordinator, output=checked_output(output), timeout_s=timeout))
