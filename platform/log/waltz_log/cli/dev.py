"""`waltz dev`: ZooKeeper, storage nodes and log servers on this machine, under one directory, until Ctrl-C.

It restarts nothing: a process that ends is reported and stays down, so that the effect on the cluster can be watched.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from waltz_log import machine_faults
from waltz_log.cli.printing import print_line
from waltz_log.errors import InvalidRequest
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.settings import ENVIRONMENT, tls_environment
from waltz_log.untrusted_files import write_private

__all__ = ["environment_file", "refuse_left_over", "run"]


class _Asked(BaseException):
    """A signal asked to stop. Not an `Exception`, so that no handler treats it as a failure."""


def environment_file(cluster: LocalCluster) -> Path:
    """A file for a shell to source: the certificate of an operator, which may do everything that a client does."""
    variables = tls_environment(cluster.certificate("operator", "dev"))
    path = cluster.directory / "certificates" / "operator.env"
    write_private(path, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()).encode())
    return path


def refuse_left_over(secure: bool, environment: Mapping[str, str]) -> None:
    """Raises `InvalidRequest` if the certificates of another cluster are set for a cluster without: nodes and commands would speak TLS to it."""
    given = sorted(name for name, value in environment.items() if value and name.startswith(f"{ENVIRONMENT}_"))
    if given and not secure:
        raise InvalidRequest(reason=f"{given[0]} is set, and this cluster has no certificates; unset {' '.join(given)}, or start it with --secure")


def run(directory: Path, *, partitions: int | None, servers: int | None, storages: int | None, session_timeout_s: float, secure: bool) -> None:
    def asked(_number: int, _frame: FrameType | None) -> None:
        # Once: the stop itself is bounded, and a second Ctrl-C must not leave children behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Asked

    problem = machine_faults.low_file_limit()
    if problem is not None:
        raise InvalidRequest(reason=problem)
    machine_faults.raise_file_limit()
    cluster = LocalCluster(
        directory,
        partitions=partitions,
        servers=servers,
        storages=storages,
        session_timeout_s=session_timeout_s,
        http=True,
        secure=secure or None,
    )
    refuse_left_over(cluster.secure, os.environ)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)
    try:
        with cluster:
            print_line(f"cluster  {cluster.cluster}")
            print_line(f"coordinator {cluster.coordinator}")
            print_line(f"logs     {cluster.log('server-0').parent}")
            print_line(f"metrics  {cluster.targets_file} ({', '.join(sorted(cluster.http_addresses.values()))})")
            if cluster.secure:
                print_line(f"env      {environment_file(cluster)}")
            print_line(f"ready cluster={cluster.cluster}")
            while True:
                if (name := cluster.wait_ended()) is not None:
                    print_line(f"ended {name}: {cluster.how_ended(name)}")
    except _Asked:
        print_line("stopped")
