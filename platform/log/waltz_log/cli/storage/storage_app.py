"""`waltz storage`: bare, it runs a storage node; with a subcommand it inspects a storage directory, or does to it what the subcommand's name says.

`migrate`, `copy-partition` and `correct-times` change a directory, `backup` and `restore` make new ones, and `forget` changes what the cluster knows.
All other commands open a directory read-only, also while the node runs.
Imports next to nothing, like `main`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Config, Coordinator, CoordinatorOption, DryRun, LogLevel, Output, Timeout, checked_output
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK

__all__ = ["storage_app"]

storage_app = typer.Typer(help="Run a storage node; inspect, copy and convert storage directories.", invoke_without_command=True)

Directory = Annotated[Path, typer.Argument(help="A storage directory, the one that holds waltz-storage.ctl.")]
Segment = Annotated[Path, typer.Argument(help="A segment's data file, <first id>.seg.")]
From = Annotated[int | None, typer.Option("--from", min=0, help="First transaction id.")]
To = Annotated[int | None, typer.Option("--to", min=0, help="Last transaction id.")]
Pace = Annotated[
    float, typer.Option("--mib-per-s", min=0.0, help="Read at most this many MiB per second, to leave the disk to a running node; 0: no limit.")
]


@storage_app.callback()
def run_node(
    context: typer.Context,
    config: Config = None,
    name: Annotated[str | None, typer.Option(help="Name of this node in the cluster.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Directory of segments and the control file.")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port on which it serves.")] = None,
    coordinator: CoordinatorOption = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Accept a directory that is empty or behind although the node held data. The node copies from its peers."),
    ] = False,
    log_level: LogLevel = None,
) -> int:
    """Run a storage node. The subcommands inspect, copy or convert a storage directory."""
    if context.invoked_subcommand is not None:
        given = [config, name, directory, listen, coordinator, log_level]
        if replace or any(each is not None for each in given):
            raise InvalidSetting(name=context.invoked_subcommand, reason="has its own options, after its name, and none of a node's", nearest=None)
        return OK
    from waltz_log.processes import storage as command
    from waltz_log.processes.logs import configure_logs
    from waltz_log.storage import StorageSettings

    configure_logs(log_level)
    settings = StorageSettings.load(config, prefix="WALTZ_STORAGE", name=name, directory=directory, listen=listen, coordinator=coordinator)
    command.run(settings, replace=replace, log_level=log_level)
    return OK


@storage_app.command("dump-control-file")
def dump_control_file(
    directory: Directory,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    output: Output = "table",
) -> int:
    """Show the control file and the fence file: both structs of each partition and which is valid, the number of starts, and the fences."""
    from waltz_log.cli.storage import storage_tools

    return storage_tools.dump_control_file(directory, partition, checked_output(output))


@storage_app.command("dump-segment")
def dump_segment(
    segment: Segment,
    part: Annotated[str, typer.Option(help="The part to show: records, index, times or header.")] = "records",
    data: Annotated[str, typer.Option(help="How to show the data of records: hex, text or none. With none, only headers are read.")] = "none",
    first: From = None,
    last: To = None,
    data_bytes: Annotated[int, typer.Option("--data-bytes", min=1, help="Bytes of data to show for each record.")] = 256,
    output: Output = "table",
) -> int:
    """Show a segment, entry by entry. With --output json, one object per line."""
    from waltz_log.cli.storage import storage_tools

    return storage_tools.dump_segment(segment, part=part, data=data, first=first, last=last, data_bytes=data_bytes, output=checked_output(output))


@storage_app.command("verify-segment")
def verify_segment(segment: Segment, output: Output = "table") -> int:
    """Verify one segment: every checksum, id and index entry. Exit code 1 if anything is wrong."""
    from waltz_log.cli.storage import storage_tools

    return storage_tools.verify_one(segment, checked_output(output))


@storage_app.command("verify")
def verify(
    directory: Directory,
    partition: Annotated[list[int] | None, typer.Option("--partition", "-p", min=0, help="Only these partitions.")] = None,
    pace: Pace = 0.0,
    output: Output = "table",
) -> int:
    """Verify a whole directory without writing to it. The node may run. Exit code 1 if anything is wrong."""
    from waltz_log.cli.storage import storage_tools

    return storage_tools.verify_all(directory, None if not partition else set(partition), pace, checked_output(output))


@storage_app.command("segment-statistics")
def segment_statistics(
    path: Annotated[Path, typer.Argument(help="A segment's data file, a partition's directory or a storage directory.")], output: Output = "table"
) -> int:
    """Count what segments hold: transactions, sizes, generations, times."""
    from waltz_log.cli.storage import storage_tools

    return storage_tools.statistics(path, checked_output(output))


@storage_app.command("copy-partition")
def copy_partition(
    source: Annotated[Path, typer.Argument(help="The storage directory to copy from. Its node may run.")],
    target: Annotated[Path, typer.Argument(help="The storage directory to copy into. Its node must be stopped.")],
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="The partition to copy.")],
    pace: Pace = 0.0,
    output: Output = "table",
) -> int:
    """Copy a partition from another node's directory, up to its low-water mark. The target's node copies the rest from its peers when it starts."""
    from waltz_log.cli.storage import storage_copies

    return storage_copies.copy_one_partition(source, target, partition, pace, checked_output(output))


@storage_app.command("describe")
def describe(directory: Directory) -> int:
    """Print a description of a directory as JSON, for `waltz cluster adopt` on another machine."""
    from waltz_log.cli.storage import storage_tools

    return storage_tools.describe(directory)


@storage_app.command("migrate")
def migrate(directory: Directory, output: Output = "table") -> int:
    """Convert a directory that Java Waltz 0.13 wrote. The old control file is kept next to the new one. No node may use the directory."""
    from waltz_log.cli.storage import storage_copies

    return storage_copies.migrate_directory(directory, checked_output(output))


@storage_app.command("correct-times")
def correct_times(
    directory: Directory,
    latest: Annotated[str, typer.Option(help="No append time is later afterwards, such as 2026-11-25T14:30:00.")],
    partition: Annotated[list[int] | None, typer.Option("--partition", "-p", min=0, help="Only these partitions.")] = None,
    output: Output = "table",
) -> int:
    """Set append times that a wrong clock made too late to the given time. The node must be stopped. Do the same on each replica."""
    from waltz_log.cli.storage import storage_copies

    return storage_copies.correct_times(directory, latest, None if not partition else set(partition), checked_output(output))


@storage_app.command("backup")
def backup(
    directory: Directory,
    target: Annotated[Path, typer.Argument(help="The backup to create. On the same file system, closed segments are linked instead of copied.")],
    pace: Pace = 64.0,
    output: Output = "table",
) -> int:
    """Create a consistent, verified backup of a storage directory. The node may run. A backup that fails leaves nothing."""
    from waltz_log.cli.storage import storage_copies

    return storage_copies.backup_directory(directory, target, pace, checked_output(output))


@storage_app.command("restore")
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="A backup made by `waltz storage backup`.")],
    target: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The storage directory to create.")],
    pace: Pace = 0.0,
    keep_session: Annotated[
        bool,
        typer.Option("--keep-session", help="All replicas are lost: keep the backup's sessions. Run `waltz cluster adopt` before a node starts."),
    ] = False,
    output: Output = "table",
) -> int:
    """Create a storage directory from a backup. A node on it counts as absent in votes until it has caught up with its peers."""
    from waltz_log.cli.storage import storage_copies

    return storage_copies.restore_directory(source, target, pace, checked_output(output), keep_session=keep_session)


@storage_app.command("forget")
def forget(
    coordinator: Coordinator,
    name: Annotated[str, typer.Argument(help="The name of the storage node, as `waltz cluster status` shows it.")],
    dry_run: DryRun = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Remove a storage node from the cluster that has no replicas and will not come back. Run `waltz drain` first."""
    from waltz_log.cli.storage import storage_forget

    return asyncio.run(storage_forget.forget(coordinator, name, dry_run=dry_run, output=checked_output(output), timeout_s=timeout))
