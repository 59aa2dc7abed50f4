"""`waltz journal`: inspects the directory of a circular journal, copies it, and measures a disk for one.

`print`, `statistics`, `export` and `verify` change nothing; `import` and `compact` write. All are refused while a process has the journal open.
Imports next to nothing, like `main`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Output, checked_output

__all__ = ["journal_app"]

journal_app = typer.Typer(help="Inspect, copy and measure circular journals.", no_args_is_help=True)

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings of the journal in YAML (WALTZ_JOURNAL_...). `replaceable_types` decides which updates are live."),
]
Directory = Annotated[Path, typer.Argument(help="Directory of a journal, which holds the journal-* files.")]


@journal_app.command(name="print")
def print_records(
    directory: Directory,
    reclaimed: Annotated[bool, typer.Option("--reclaimed", help="Also show records left from earlier uses of the files.")] = False,
    safe: Annotated[bool, typer.Option("--safe", help="Hide bodies, which may be confidential.")] = False,
    output: Output = "table",
) -> int:
    """Print every record in the order of the files, live or not."""
    from waltz_log.cli.journal import journal as command

    return command.print_records(directory, reclaimed=reclaimed, safe=safe, output=checked_output(output))


@journal_app.command()
def statistics(directory: Directory, config: Config = None, output: Output = "table") -> int:
    """Count live records, and show what each file holds."""
    from waltz_log.cli.journal import journal as command

    return command.statistics(directory, config, output=checked_output(output))


@journal_app.command()
def verify(directory: Directory, output: Output = "table") -> int:
    """Read everything and list what is damaged. Exit code 1 if anything is damaged."""
    from waltz_log.cli.journal import journal as command

    return command.verify(directory, output=checked_output(output))


@journal_app.command()
def export(
    directory: Directory,
    to: Annotated[Path | None, typer.Option("--to", help="A new file. Standard output by default.")] = None,
    config: Config = None,
) -> int:
    """Write live records and prepared transactions as lines of JSON."""
    from waltz_log.cli.journal import journal as command

    return command.export(directory, to, config)


@journal_app.command(name="import")
def import_lines(
    directory: Annotated[Path, typer.Argument(help="Directory of an empty journal, or of a new one.")],
    source: Annotated[Path | None, typer.Option("--from", help="Output of `waltz journal export`. Standard input by default.")] = None,
    config: Config = None,
    output: Output = "table",
) -> int:
    """Fill an empty journal from the output of `waltz journal export`."""
    from waltz_log.cli.journal import journal as command

    return command.import_lines(directory, source, config, output=checked_output(output))


@journal_app.command()
def compact(directory: Directory, config: Config = None, output: Output = "table") -> int:
    """Copy live records out of sparse files, and free these files."""
    from waltz_log.cli.journal import journal as command

    return command.compact(directory, config, output=checked_output(output))


@journal_app.command()
def measure(
    directory: Annotated[Path, typer.Option(help="Any directory on the disk. 16 MiB are written there and removed again.")],
    seconds: Annotated[float, typer.Option(min=0.1, max=600.0, help="Seconds to measure.")] = 3.0,
    output: Output = "table",
) -> int:
    """Measure how fast a disk syncs, and suggest settings for group commit."""
    from waltz_log.cli.journal import journal as command

    return command.measure(directory, seconds, output=checked_output(output))
