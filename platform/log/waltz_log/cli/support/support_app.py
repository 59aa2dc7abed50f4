"""The arguments of `waltz config show`, `explain`, `selftest` and `bundle`. Imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Config, Coordinator, Output, Timeout, checked_output

__all__ = ["add_support"]

config_app = typer.Typer(help="Inspect settings.", no_args_is_help=True)


@config_app.command()
def show(
    component: Annotated[str, typer.Argument(help="server, storage, console, client or journal.")],
    config: Config = None,
    changed: Annotated[bool, typer.Option("--changed", help="Show only what differs from the defaults, or is missing.")] = False,
    output: Output = "table",
) -> int:
    """Show the settings of a component with their origin: default, file or variable. Exit code 2 if it would not start with them."""
    from waltz_log.cli.support import config as command

    return command.show(component, config, changed=changed, output=checked_output(output))


def explain(
    error: Annotated[list[str], typer.Argument(metavar="ERROR...", help="Name of an error, a message as it was printed, or an exit code.")],
    output: Output = "table",
) -> int:
    """Explain an error: what happened, what to do, whether the call had an effect, and where to read on."""
    from waltz_log.cli.support import explain as command

    return command.run(" ".join(error), output=checked_output(output))


def selftest(
    coordinator: Coordinator,
    directory: Annotated[Path, typer.Option(help="Directory on the disk to measure, such as that of a storage node.")] = Path(),
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Measure syncs of a disk of this machine, round trips to every node, and differences of clocks. Exit code 1 if something is wrong."""
    from waltz_log.cli.support import selftest as command

    return asyncio.run(command.run(coordinator, directory, output=checked_output(output), timeout_s=timeout))


def bundle(
    coordinator: Coordinator,
    to: Annotated[Path, typer.Option("--to", help="The archive, a new file.")] = Path("waltz-bundle.tar.gz"),
    config: Annotated[list[Path] | None, typer.Option("--config", "-c", help="File of settings to add, without secrets. May be repeated.")] = None,
    log: Annotated[list[Path] | None, typer.Option("--log", help="Log file whose end is added, without secrets. May be repeated.")] = None,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Collect what support needs in one archive: state, topics, versions, settings and logs; no payloads, no secrets."""
    from waltz_log.cli.support import bundle as command

    return command.run(coordinator, to, configs=config or (), logs=log or (), output=checked_output(output), timeout_s=timeout)


def add_support(app: typer.Typer) -> None:
    app.add_typer(config_app, name="config")
    for command in (explain, selftest, bundle):
        app.command()(command)
