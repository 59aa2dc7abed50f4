"""The `waltz` command: arguments in, one component out. The other modules of this folder implement the commands. Imports next to nothing, so that
`waltz --help` is quick: each command imports its component when it runs. An error is one line on stderr and the exit code of its class
(`exit_codes`).
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any  # Any: click's commands

from waltz_log.processes.grpc_environment import GRPC_ENVIRONMENT

os.environ.update(GRPC_ENVIRONMENT | os.environ)  # what is set already stays

import typer
from typer.exceptions import TyperException

from waltz_log import machine_faults
from waltz_log.cli.access.access_app import access_app
from waltz_log.cli.addressed_commands import add_addresses
from waltz_log.cli.certificates.certificates_app import certificates_app
from waltz_log.cli.cluster.cluster_app import cluster_app
from waltz_log.cli.cluster.placement_app import add_placement
from waltz_log.cli.examples import HELP_NAMES, add_examples
from waltz_log.cli.journal.journal_app import journal_app
from waltz_log.cli.outbox.outbox_app import outbox_app
from waltz_log.cli.plugins import PluginGroup
from waltz_log.cli.shared_arguments import Config, CoordinatorOption, LogLevel, Output, checked_output
from waltz_log.cli.storage.storage_app import storage_app
from waltz_log.cli.support.support_app import add_support
from waltz_log.cli.topics.lag_app import add_lag
from waltz_log.cli.topics.quotas_app import quotas_app
from waltz_log.cli.topics.subscribers_app import subscribers_app
from waltz_log.cli.topics.topics_app import topics_app
from waltz_log.cli.transactions.locks_app import locks_app
from waltz_log.cli.transactions.transactions_app import add_transactions
from waltz_log.errors import WaltzError, exit_code_of
from waltz_log.exit_codes import CLOSED_PIPE, DEFECT, INTERRUPTED, USAGE
from waltz_log.extras import missing_package
from waltz_log.outside_text import printable

__all__ = ["app", "main"]

app = typer.Typer(
    name="waltz",
    help="A replicated, totally ordered log with optimistic locks.",
    cls=PluginGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_NAMES},  # groups inherit them
)
app.add_typer(cluster_app, name="cluster")
app.add_typer(certificates_app, name="certificate")
app.add_typer(access_app, name="access")
app.add_typer(outbox_app, name="outbox")
app.add_typer(storage_app, name="storage")
app.add_typer(journal_app, name="journal")
app.add_typer(topics_app, name="topic")
add_transactions(app)
app.add_typer(subscribers_app, name="subscriber")
app.add_typer(locks_app, name="lock")
app.add_typer(quotas_app, name="quota")
add_placement(app)
add_lag(app)
add_support(app)


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
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plain text at an address that other machines reach.")] = False,
) -> int:
    """Run a real ZooKeeper, from the jars inside the installed pyspark."""
    from waltz_log.processes import zookeeper as command

    return command.run(directory, listen, insecure=insecure)


@app.command()
def server(
    config: Config = None,
    listen: Annotated[str | None, typer.Option(help="host:port on which it serves.")] = None,
    coordinator: CoordinatorOption = None,
    log_level: LogLevel = None,
) -> int:
    """Run a log server."""
    from waltz_log.processes import server as command
    from waltz_log.processes.logs import configure_logs
    from waltz_log.server import ServerSettings

    configure_logs(log_level)
    command.run(ServerSettings.load(config, prefix="WALTZ_SERVER", listen=listen, coordinator=coordinator), log_level=log_level)
    return 0


@app.command()
def dev(
    directory: Annotated[Path, typer.Option(help="Directory for all data. With an existing one, the same cluster starts again.")] = Path("var/dev"),
    partitions: Annotated[int | None, typer.Option(min=1, help="Partitions of a new cluster (default 4).")] = None,
    servers: Annotated[int | None, typer.Option(min=1, help="Log servers (default 2).")] = None,
    storages: Annotated[int | None, typer.Option(min=1, help="Storage nodes of a new cluster (default 3).")] = None,
    session_timeout: Annotated[float, typer.Option(min=1.0, max=10.0, help="Seconds until a killed server's partitions move.")] = 4.0,
    secure: Annotated[bool, typer.Option("--secure", help="Mutual TLS on every connection of a new cluster.")] = False,
) -> int:
    """Run a whole cluster on this machine, until Ctrl-C."""
    from waltz_log.cli import dev as command

    command.run(directory, partitions=partitions, servers=servers, storages=storages, session_timeout_s=session_timeout, secure=secure)
    return 0


@app.command()
def console(
    cluster: Annotated[str | None, typer.Argument(help="Log servers of the cluster: host:port[,host:port].")] = None,
    config: Config = None,
    listen: Annotated[str | None, typer.Option(help="host:port on which it serves; without TLS, of the loopback (default 127.0.0.1:7080).")] = None,
    allow_actions: Annotated[bool, typer.Option("--allow-actions", help="Offer actions that change the cluster. Each asks first.")] = False,
    hide: Annotated[list[str] | None, typer.Option("--hide", help="Topic whose payloads are not shown, or a pattern such as payments/*.")] = None,
    pipelines: Annotated[list[str] | None, typer.Option("--pipelines", help="Pipeline file, or directory of them, to show with its tables.")] = None,
    pipeline_metrics: Annotated[
        list[str] | None, typer.Option("--pipeline-metrics", help="File, http or https address of the metrics of a job that runs pipelines.")
    ] = None,
    replay_command: Annotated[
        str | None, typer.Option("--replay-command", help="With --allow-actions: command that replays dead letters; --pipeline FILE is appended.")
    ] = None,
    principal: Annotated[str | None, typer.Option(help="Principal to present to topics that restrict access.")] = None,
    log_level: LogLevel = None,
) -> int:
    """Serve web pages about a cluster: partitions, transactions, conflicts, topics, pipelines and nodes."""
    from waltz_log.cli import console as command
    from waltz_log.processes.logs import configure_logs

    configure_logs(log_level)
    given = {"hidden_topics": hide, "pipelines": pipelines, "pipeline_metrics": pipeline_metrics, "replay_command": replay_command}
    command.run(config, cluster=cluster, listen=listen, allow_actions=allow_actions or None, principal=principal, **given)
    return 0


@app.command()
def doctor(
    coordinator: Annotated[
        str | None,
        typer.Option(
            envvar=["WALTZ_SERVER_COORDINATOR", "WALTZ_STORAGE_COORDINATOR"], help="ZooKeeper to check for access by strangers, as host:port/path."
        ),
    ] = None,
    output: Output = "table",
) -> int:
    """Check this machine for what the platform needs, and show how to install what is missing."""
    from waltz_log.cli import doctor as command

    return command.run(Path.cwd(), checked_output(output), coordinator)


add_examples(app)
add_addresses(app)


def main(arguments: list[str] | None = None) -> None:
    if (problem := machine_faults.foreign_code(Path(), __file__)) is not None:
        print(f"waltz: {problem}", file=sys.stderr)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


@cache
def root_command() -> Any:
    """All commands. Building them is most of the time of a short command, so a process that runs several of them builds them once."""
    return typer.main.get_command(app)


def run(arguments: list[str]) -> int:
    """Returns the exit code. Prints errors on stderr."""
    try:
        code = int(root_command()(args=arguments, prog_name="waltz", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _closed_pipe()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes it an exit of its own
            return _closed_pipe()
        raise
    except TyperException as error:
        message = error.format_message().rstrip(".")
        if message:  # a bare `waltz` has shown its help
            print(f"waltz: {printable(message[:1].lower() + message[1:])}", file=sys.stderr)
        return USAGE
    except typer.Abort:
        return DEFECT
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        reason = missing_package(error)
        if reason is None:
            raise
        print(f"waltz: the command needs {reason}", file=sys.stderr)
        return USAGE
    except (WaltzError, OSError) as error:
        print(f"waltz: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return exit_code_of(error)


def _closed_pipe() -> int:
    """The reader of the pipe has closed it, as `| head` does. Discard what is left in the buffer, which the interpreter would write when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return CLOSED_PIPE
