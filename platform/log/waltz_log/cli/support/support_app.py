"""The arguments of `waltz config show` and `waltz explain`. The modules beside this one implement them. Imports next to nothing, like `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_log.cli.arguments import Config, Output, checked_output

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


def add_support(app: typer.Typer) -> None:
    app.add_typer(config_app, name="config")
    app.command()(explain)
