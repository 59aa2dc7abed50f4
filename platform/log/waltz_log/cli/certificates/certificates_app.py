"""The arguments of `waltz certificate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Output, checked_output

__all__ = ["certificates_app"]

certificates_app = typer.Typer(help="Certificates for development and tests.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="Directory of the authority. Created if it is missing.")]


@certificates_app.callback()
def options() -> None:
    """Options before the name of a command."""


@certificates_app.command()
def create(
    directory: Directory,
    names: Annotated[list[str], typer.Argument(help="ROLE/NAME of each certificate, such as node/storage-0, zookeeper/main or application/orders.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Host name or address at which the node is reached; repeat it for several (default: this machine).")
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="The certificates may also serve, as those of the console and of a job with metrics must."),
    ] = False,
    days: Annotated[float, typer.Option(min=0.001, help="Days until the certificate expires.")] = 365,
    output: Output = "table",
) -> int:
    """Issue certificates from a development authority. It is created by the first call, and its key stays in the directory."""
    from waltz_log.cli.certificates import certificates as command

    return command.create(directory, names, hosts=host, days=days, serve=serve, output=checked_output(output))
