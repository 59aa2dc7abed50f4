"""The `waltz` command: arguments in, one component out. What the commands do stands in the modules beside this one.

Imports next to nothing, so that `waltz --help` is quick: each command imports its component when it runs. Errors are one line on stderr and an exit
code that tells their class (`exit_codes`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

from waltz_log.processes.grpc_environment import GRPC_ENVIRONMENT

os.environ.update(GRPC_ENVIRONMENT | os.environ)  # what is set already stays

import typer
from typer.exceptions import TyperException

from waltz_log.cli.cluster.replicas_app import replicas_app
from waltz_log.cli.journal.journal_app import journal_app
from waltz_log.cli.outputs import Output, checked_output
from waltz_log.cli.plugins import PluginGroup
from waltz_log.cli.storage.storage_app import storage_app
from waltz_log.cli.topics.subscribers_app import subscribers_app
from waltz_log.cli.topics.topics_app import topics_app
from waltz_log.cli.transactions.transactions_app import add_transactions
from waltz_log.errors import WaltzError, exit_code_of
from waltz_log.exit_codes import CLOSED_PIPE, DEFECT, USAGE
from waltz_log.extras import missing_package

__all__ = ["app", "main"]

app = typer.Typer(
    name="waltz",
    help="A replicated, totally ordered log with optimistic locks.",
    cls=PluginGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cluster_app = typer.Typer(help="Create, grow and inspect a cluster.", no_args_is_help=True)
app.add_typer(cluster_app, name="cluster")
cluster_app.add_typer(replicas_app, name="replicas")
outbox_app = typer.Typer(help="Inspect a service's outbox; retry or drop its dead letters.", no_args_is_help=True)
app.add_typer(outbox_app, name="outbox")
app.add_typer(storage_app, name="storage")
app.add_typer(journal_app, name="journal")
app.add_typer(topics_app, name="topic")
add_transactions(app)
app.add_typer(subscribers_app, name="subscribers")

Config = Annotated[Path | None, typer.Option("--config", "-c", help="Settings in YAML. The environment and the options here override it.")]
Cluster = Annotated[str, typer.Argument(help="Connection string of the cluster: host:port[,host:port]/path.")]
ClusterOption = Annotated[str | None, typer.Option("--cluster", help="Connection string of the cluster: host:port[,host:port]/path.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error. Also WALTZ_LOG_LEVEL.")]
OutboxDirectory = Annotated[Path, typer.Argument(help="Directory of the outbox.")]
DeadIds = Annotated[list[int] | None, typer.Argument(help="Ids of dead letters.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the coordinator.")]


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"waltz {version('waltz-platform')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version, then exit.")] = False,
) -> None:
    """Options before the name of a command."""


@app.command()
def zookeeper(
    directory: Annotated[Path, typer.Option(help="Directory for its data and configuration.")] = Path("var/zookeeper"),
    listen: Annotated[str, typer.Option(help="host:port on which it serves.")] = "127.0.0.1:2181",
) -> int:
    """Run a real ZooKeeper, from the jars inside the installed pyspark."""
    from waltz_log.processes import zookeeper as command

    return command.run(directory, listen)


@app.command()
def server(
    config: Config = None,
    listen: Annotated[str | None, typer.Option(help="host:port on which it serves.")] = None,
    cluster: ClusterOption = None,
    log_level: LogLevel = None,
) -> int:
    """Run a log server."""
    from waltz_log.processes import server as command
    from waltz_log.processes.logs import configure_logs
    from waltz_log.server import ServerSettings

    configure_logs(log_level)
    command.run(ServerSettings.load(config, prefix="WALTZ_SERVER", listen=listen, cluster=cluster), log_level=log_level)
    return 0


@app.command()
def dev(
    directory: Annotated[Path, typer.Option(help="Directory for all data. With an existing one, the same cluster starts again.")] = Path("var/dev"),
    partitions: Annotated[int | None, typer.Option(min=1, help="Partitions of a new cluster (default 4).")] = None,
    servers: Annotated[int | None, typer.Option(min=1, help="Log servers (default 2).")] = None,
    storages: Annotated[int | None, typer.Option(min=1, help="Storage nodes of a new cluster (default 3).")] = None,
    session_timeout: Annotated[float, typer.Option(min=1.0, max=10.0, help="Seconds until a killed server's partitions move.")] = 4.0,
) -> int:
    """Run a whole cluster on this machine, until Ctrl-C."""
    from waltz_log.cli import dev as command

    command.run(directory, partitions=partitions, servers=servers, storages=storages, session_timeout_s=session_timeout)
    return 0


@app.command()
def doctor(output: Output = "table") -> int:
    """Check this machine for what the platform needs, and show how to install what is missing."""
    from waltz_log.cli import doctor as command

    return command.run(Path.cwd(), checked_output(output))


@cluster_app.command()
def create(
    cluster: Cluster,
    name: Annotated[str, typer.Option(help="A name for people; the cluster key identifies the cluster.")],
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions; `waltz cluster grow` adds more.")],
    storages: Annotated[str, typer.Option(help="Names of the storage nodes, separated by commas.")],
    replication: Annotated[int, typer.Option(min=1, help="Replicas of each partition.")] = 3,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing if the cluster exists already.")] = False,
    timeout: Timeout = 10.0,
) -> int:
    """Create a cluster. Fails if the cluster exists already."""
    from waltz_log.cli.cluster import cluster as command

    names = [each.strip() for each in storages.split(",")]
    return asyncio.run(
        command.create(cluster, name=name, partitions=partitions, storages=names, replication=replication, if_missing=if_missing, timeout_s=timeout)
    )


@cluster_app.command()
def grow(
    cluster: Cluster,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions afterwards.")],
    storages: Annotated[str | None, typer.Option(help="Storage nodes for the new partitions, separated by commas. All nodes by default.")] = None,
    replication: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each new partition. By default as many as the existing partitions have.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    timeout: Timeout = 10.0,
) -> int:
    """Add partitions to a log while the cluster runs. The number of partitions cannot decrease."""
    from waltz_log.cli.cluster import grow as command

    names = None if storages is None else [each.strip() for each in storages.split(",")]
    return asyncio.run(command.run(cluster, partitions, storages=names, replication=replication, dry_run=dry_run, timeout_s=timeout))


@cluster_app.command()
def adopt(
    cluster: Cluster,
    nodes: Annotated[
        list[str],
        typer.Argument(metavar="NAME=DIRECTORY...", help="Each node with its directory, or the output of `waltz storage describe`."),
    ],
    name: Annotated[str, typer.Option(help="A name for people. The cluster key comes from the directories.")],
    missing: Annotated[
        list[str] | None,
        typer.Option(help="A node that held every partition and is not listed; recovery counts it as absent and waits for it if the vote needs it."),
    ] = None,
    restored: Annotated[
        bool, typer.Option("--restored", help="The coordinator was restored to an older state: keep its topics and replace the rest of its metadata.")
    ] = False,
    timeout: Timeout = 10.0,
) -> int:
    """Create the metadata of a cluster for storage directories that hold data, such as migrated ones. Start nodes and servers afterwards."""
    from waltz_log.cli.cluster import adopt as command

    return asyncio.run(command.run(cluster, name=name, nodes=nodes, missing=missing or [], restored=restored, timeout_s=timeout))


@cluster_app.command()
def status(
    cluster: Cluster,
    output: Output = "table",
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait until the exit code is 0.")] = 0.0,
    complete: Annotated[bool, typer.Option("--complete", help="Also ask every node and every worker for its status.")] = False,
    timeout: Timeout = 10.0,
) -> int:
    """Show owners, replicas and nodes. Exit code 3 if a partition has no owner, or no majority of replicas that accept appends."""
    from waltz_log.cli.cluster import cluster as command

    return asyncio.run(command.status(cluster, output=checked_output(output), wait_s=wait, complete=complete, timeout_s=timeout))


@outbox_app.command(name="status")
def outbox_status(directory: OutboxDirectory, output: Output = "table") -> int:
    """Show pending, undecided and dead intents. The service may run. Exit code 1 if an operator should act."""
    from waltz_log.cli.outbox import outbox as command

    return command.status(directory, output=checked_output(output))


@outbox_app.command(name="list")
def outbox_list(
    directory: OutboxDirectory,
    pending: Annotated[bool, typer.Option("--pending", help="Show the intents that are not appended yet instead.")] = False,
    output: Output = "table",
) -> int:
    """Show the dead letters. The service must be stopped."""
    from waltz_log.cli.outbox import outbox as command

    return command.listing(directory, pending=pending, output=checked_output(output))


@outbox_app.command(name="retry")
def outbox_retry(
    directory: OutboxDirectory,
    dead: DeadIds = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    data: Annotated[str | None, typer.Option(help="Append this data instead.")] = None,
    arguments: Annotated[str | None, typer.Option(help="Call the handler with these arguments instead, as JSON.")] = None,
) -> int:
    """Turn dead letters back into intents. The service must be stopped; it forwards them after its next start."""
    from waltz_log.cli.outbox import outbox as command

    return command.retry(directory, dead or [], everything=everything, data=data, arguments=arguments)


@outbox_app.command(name="drop")
def outbox_drop(
    directory: OutboxDirectory,
    dead: DeadIds = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
) -> int:
    """Delete dead letters permanently. The service must be stopped."""
    from waltz_log.cli.outbox import outbox as command

    return command.drop(directory, dead or [], everything=everything)


def main(arguments: list[str] | None = None) -> None:
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """The exit code; errors are told on stderr."""
    try:
        code = int(app(args=arguments, prog_name="waltz", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _closed_pipe()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes it an exit of its own
            return _closed_pipe()
        raise
    except TyperException as error:
        told = error.format_message().rstrip(".")
        if told:  # a bare `waltz` has shown its help
            print(f"waltz: {told[:1].lower()}{told[1:]}", file=sys.stderr)
        return USAGE
    except typer.Abort:
        return DEFECT
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        reason = missing_package(error)
        if reason is None:
            raise
        print(f"waltz: the command needs {reason}", file=sys.stderr)
        return USAGE
    except (WaltzError, OSError) as error:
        print(f"waltz: {' '.join(str(error).split())}", file=sys.stderr)
        return exit_code_of(error)


def _closed_pipe() -> int:
    """Whoever read has enough, as with `| head`. What is left in the buffer has nowhere to go when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return CLOSED_PIPE
