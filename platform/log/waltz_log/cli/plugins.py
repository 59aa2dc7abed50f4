"""Commands of `waltz` that other packages bring: an entry point in the group `waltz.cli` names each,
`pipeline = "waltz_delta.pipelines.pipeline_app:pipeline_app"`.

The log does not know these packages. A package is imported only when its command runs or its help is shown; like `main`, it imports its component
when it runs. If a package cannot be imported because an extra is not installed, only its own command reports that. All other commands work.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any  # click's context and commands

import typer
from typer.core import TyperGroup

from waltz_log.cli.addressed_commands import add_addresses
from waltz_log.cli.examples import add_examples
from waltz_log.extras import missing_package

__all__ = ["GROUP", "CommandMissing", "PluginGroup"]

GROUP = "waltz.cli"


class CommandMissing(typer.BadParameter):
    """The command is declared, and what it needs is not installed."""


@cache
def _declared() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=GROUP)}


class PluginGroup(TyperGroup):
    """The commands of the log, then those that were declared."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(set(_declared()) - set(self.commands))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None or cmd_name not in _declared():
            return found
        try:
            app = _declared()[cmd_name].load()
            add_examples(app, cmd_name)
            add_addresses(app)
        except ImportError as error:
            app = _missing(f"{cmd_name} needs {missing_package(error) or f'a package that is not installed: {error}'}")
        command = typer.main.get_command(app)
        command.name = cmd_name
        return command


def _missing(message: str) -> typer.Typer:
    """A command that can be listed, and says why it cannot run."""
    app = typer.Typer(add_completion=False)

    @app.command(help=message, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def missing() -> None:
        raise CommandMissing(message)

    return app
