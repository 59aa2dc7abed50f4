"""`waltz journal`: looks at the directory of a circular journal, carries it over, and measures a disk for one.

`print`, `stats`, `export` and `verify` change nothing; `import` and `compact` write. All of them are refused where a process has the journal open.
Imports next to nothing, like `main`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waltz_log.cli.outputs import Output, checked_output

__all__ = ["journal_app"]

journal_app = typer.Typer(help="Inspect, copy and measure circular journals.", no_args_is_help=True)

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings of the journal in YAML (WALTZ_JOURNAL_...). Its replaceable types say which updates still live."),
]
Directory = Annotated[Path, typer.Argument(help="The directory of a journal, the one that holds journal-* files.")]


@journal_app.command(name="print")
def print_records(
    directory: Directory,
    reclaimed: Annotated[bool, typer.Option("--reclaimed", help="Also what is left of earlier uses of the files.")] = False,
    safe: Annotated[bool, typer.Option("--safe", help="Hide bodies: they may hold what is not for every eye.")] = False,
    output: Output = "table",
) -> int:
    """Print every record where it stands, living or not."""
    from waltz_log.cli.journal import journal as command

    return command.print_records(directory, reclaimed=reclaimed, safe=safe, output=checked_output(output))


@journal_app.command()
def stats(directory: Directory, config: Config = None, output: Output = "table") -> int:
    """Show what lives, and what each file holds."""
    from waltz_log.cli.journal import journal as command

    return command.stats(directory, config, output=checked_output(output))


@journal_app.command()
def verify(directory: Directory, output: Output = "table") -> int:
    """Read everything and list what is damaged. Exit code 1 if something is."""
    from waltz_log.cli.journal import journal as command

    return command.verify(directory, output=checked_output(output))


@journal_app.command()
def export(
    directory: Directory,
    to: Annotated[Path | None, typer.Option("--to", help="A new file; standard output where it is not given.")] = None,
    config: Config = None,
) -> int:
    """Write living records and transactions in doubt as lines of JSON."""
    from waltz_log.cli.journal import journal as command

    return command.export(directory, to, config)


@journal_app.command(name="import")
def import_lines(
    directory: Annotated[Path, typer.Argument(help="Where the journal is to be: a journal that holds nothing, or none yet.")],
    source: Annotated[Path | None, typer.Option("--from", help="What export wrote; standard input where it is not given.")] = None,
    config: Config = None,
) -> int:
    """Fill an empty journal from what export wrote."""
    from waltz_log.cli.journal import journal as command

    return command.import_lines(directory, source, config)


@journal_app.command()
def compact(directory: Directory, config: Config = None) -> int:
    """Write again what lives in sparse files, and free them."""
    from waltz_log.cli.journal import journal as command

    return command.compact(directory, config)


@journal_app.command()
def measure(
    directory: Annotated[Path, typer.Option(help="Somewhere on the disk; 16 MiB are written there and removed again.")],
    seconds: Annotated[float, typer.Option(min=0.1, max=600.0, help="How long to measure.")] = 3.0,
    output: Output = "table",
) -> int:
    """Find how fast a disk syncs, and suggest what a group commit should wait for."""
    from waltz_log.cli.journal import journal as command

    return command.measure(directory, seconds, output=checked_output(output))
