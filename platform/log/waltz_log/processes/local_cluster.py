"""A whole cluster of real processes under one directory: for tests, the demo, the benchmarks and `waltz dev`.

Decides ports (chosen once and kept in `dev.json`; another one if it is in use), order of start and stop, and when the cluster is ready. Restarts
nothing by itself. The directory holds everything: the next start brings the same cluster up with all its data. This process itself has no connection
to the cluster; it runs the command line for that, so its own event loops and forks are not disturbed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self  # Any: JSON values, and settings that a model checks

import yaml

from waltz_log.coordination import embedded
from waltz_log.coordination.access_lists import access_lists
from waltz_log.coordination.ensemble_root import close_served
from waltz_log.coordination.served_identity import ServedIdentity
from waltz_log.errors import ClusterUnavailable, InvalidRequest
from waltz_log.processes.children import Processes
from waltz_log.processes.left_over import refuse_variables_of_nodes
from waltz_log.processes.ports import HOST, HeldPort, free_port
from waltz_log.security.settings import TlsSettings, tls_environment
from waltz_log.untrusted_files import DEVELOPMENT, PRIVATE_DIRECTORY, PUBLIC, make_private_directory, read_text, write_private

__all__ = ["LocalCluster"]

NAME = "dev"
REPLICATION = 3
LOCK = "dev.lock"
DEFAULT_PARTITIONS, DEFAULT_STORAGES, DEFAULT_SERVERS = 4, 3, 2

START_TIMEOUT_S = 120.0
"""For the whole cluster on a busy machine; it usually needs 3 to 5 s. Beside eight programs that compute on two cores it needed a minute."""

STOP_TIMEOUT_S = 15.0
"""For one kind of process. A process that needs longer is killed, which the log survives."""

WALTZ = (sys.executable, "-P", "-m", "waltz_log.cli")


def _missing(output: str) -> str:
    """What is missing according to `cluster status`, or its output if it is not JSON."""
    try:
        return str(json.loads(output)["missing"])
    except (ValueError, KeyError):
        return output.strip()


class LocalCluster:
    """A cluster of real processes under a directory: `with LocalCluster(directory) as cluster:` runs from ready to stopped. Processes are named
    `zookeeper`, `storage-<n>` and `server-<n>`."""

    def __init__(
        self,
        directory: Path | str,
        *,
        partitions: int | None = None,
        storages: int | None = None,
        servers: int | None = None,
        secure: bool | None = None,
        session_timeout_s: float = 4.0,
        storage_settings: Mapping[str, Any] | None = None,
        server_settings: Mapping[str, Any] | None = None,
        http: bool = False,
    ) -> None:
        """Counts that are not given are those of the cluster in the directory, or 4 partitions, 3 storage nodes, 2 servers. `http`: nodes answer
        `/readyz` and `/metrics`, at ports that are kept (`http_addresses`). `secure`: mutual TLS on every connection, with certificates of an
        authority in the directory. Raises `InvalidRequest` if the directory holds a cluster with other partitions or storage nodes, or a cluster
        that differs in `secure`."""
        self.directory = Path(directory).resolve()
        self._file = self.directory / "dev.json"
        self._processes = Processes(self.directory / "logs")
        self._lock: IO[bytes] | None = None
        kept = self._read()
        self.partitions = self._agreed("partitions", partitions, kept, DEFAULT_PARTITIONS)
        self.storages = self._agreed("storages", storages, kept, DEFAULT_STORAGES)
        self.servers = servers or kept.get("servers") or DEFAULT_SERVERS
        kept_secure = kept.get("secure")
        if None not in (secure, kept_secure) and secure != kept_secure:
            reason = f"{self.directory} holds a cluster {'with' if kept_secure else 'without'} certificates; choose another directory"
            raise InvalidRequest(reason=reason)
        self.secure = bool(secure if kept_secure is None else kept_secure)
        self._certificates = self.directory / "certificates"
        self._ports: dict[str, int] = dict(kept.get("ports", {}))
        self._held: dict[str, HeldPort] = {}
        self._session_timeout_s = session_timeout_s
        self._storage_settings = dict(storage_settings or {})
        self._server_settings = dict(server_settings or {})
        self._http = http
        self._identity: ServedIdentity | None = None
        """For ZooKeeper, in a secure cluster."""

    def _agreed(self, what: str, asked: int | None, kept: Mapping[str, Any], default: int) -> int:
        found = kept.get(what)
        if asked is not None and asked < 1:
            raise InvalidRequest(reason=f"{what} must be at least 1, not {asked}")
        if asked is not None and found is not None and asked != found:
            raise InvalidRequest(reason=f"{self.directory} holds a cluster of {what}={found}, not {asked}; choose another directory")
        return int(asked or found or default)

    # ---- the file ------------------------------------------------------------------------------------------------------------------------------

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(read_text(self._file, DEVELOPMENT))
            return dict(found)
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, RecursionError):
            raise InvalidRequest(reason=f"{self._file} is not what waltz dev writes; choose another directory, or remove this one") from None

    def _write(self) -> None:
        kept = {
            "cluster": self.cluster,
            "coordinator": self.coordinator,
            "partitions": self.partitions,
            "storages": self.storages,
            "servers": self.servers,
            "secure": self.secure,
            "ports": self._ports,
            "pids": self.processes,
        }
        write_private(self._file, f"{json.dumps(kept, indent=2)}\n".encode())

    # ---- what it is ----------------------------------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> str:
        """The addresses of the log servers, for everything that uses the cluster; known after `open`."""
        return ",".join(self.addresses[name] for name in self.server_names if name in self._ports)

    @property
    def coordinator(self) -> str:
        """The address of the coordinator, for nodes and for commands of operators; known after `open`."""
        return f"{HOST}:{self._ports['zookeeper']}/waltz/{NAME}"

    @property
    def addresses(self) -> dict[str, str]:
        """`host:port` of each process, by name, as far as it was started once."""
        return {name: f"{HOST}:{self._ports[name]}" for name in ("zookeeper", *self.storage_names, *self.server_names) if name in self._ports}

    @property
    def processes(self) -> dict[str, int]:
        """Names and process ids of the running processes."""
        return self._processes.pids

    @property
    def ended(self) -> dict[str, int]:
        """Names and exit codes of the processes that have ended."""
        return self._processes.ended()

    @property
    def storage_names(self) -> list[str]:
        """The names of the storage nodes."""
        return [f"storage-{n}" for n in range(self.storages)]

    @property
    def server_names(self) -> list[str]:
        """The names of the servers."""
        return [f"server-{n}" for n in range(self.servers)]

    def certificate(self, role: str, name: str, *, serve: bool | None = None) -> TlsSettings:
        """The certificate of a process or client, issued when it is first asked for. `serve`: as for `DevelopmentAuthority.issue`. Only for a secure
        cluster."""
        from waltz_log.security.authority import DevelopmentAuthority  # needs cryptography, which a cluster without certificates does not

        authority = DevelopmentAuthority(self._certificates)
        return authority.find(role, name) or authority.issue(role, name, serve=serve)

    def environment(self, role: str = "application") -> dict[str, str]:
        """The environment in which a command or application of that role reaches the cluster: this process's, with a certificate if the cluster is
        secure."""
        return {**os.environ, **self.variables(role, "dev")}

    def variables(self, role: str, name: str) -> dict[str, str]:
        """The variables that name the certificate of a client; none if the cluster is not secure."""
        return tls_environment(self.certificate(role, name)) if self.secure else {}

    def program(self, name: str) -> Sequence[str]:
        """The command line that `start` runs the process `name` with. Override it to run another version, or under another program."""
        return WALTZ

    def log(self, name: str) -> Path:
        """The file that the process writes to."""
        return self._processes.log(name)

    # ---- all of it -----------------------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.open()
            self.wait_ready(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def open(self) -> None:
        """Starts everything; `wait_ready` waits until it serves. Raises `InvalidRequest` if another process runs this directory's cluster, or
        variables of other nodes are set. Only this user opens the directory, whatever the umask. Keys, data and logs are below it."""
        refuse_variables_of_nodes(os.environ)
        make_private_directory(self.directory)
        if (self.directory / LOCK).exists() or not any(self.directory.iterdir()):  # not a directory that holds other files, such as /tmp
            self.directory.chmod(PRIVATE_DIRECTORY)
        lock = (self.directory / LOCK).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise InvalidRequest(reason=f"the cluster in {self.directory} is already running") from None
        self._lock = lock
        self.start("zookeeper")
        self._create()
        for name in (*self.storage_names, *self.server_names):
            self.start(name)

    def _create(self) -> None:
        marker = self.directory / "created"
        if marker.exists():
            return
        arguments = ["--name", NAME, "--partitions", str(self.partitions), "--storages", ",".join(self.storage_names)]
        done = self._waltz("cluster", "create", self.coordinator, *arguments, "--replication", str(min(REPLICATION, self.storages)), "--if-missing")
        if done.returncode != 0:
            raise ClusterUnavailable(address=self.coordinator, reason=done.stderr.strip() or f"cluster create: exit code {done.returncode}")
        marker.touch()

    def _waltz(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*WALTZ, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            env=self.environment("operator"),
        )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when every partition accepts appends and, if all processes run, all of them answer. Raises `ClusterUnavailable` after `timeout_s`,
        or as soon as a process has ended by itself."""
        until_s = time.monotonic() + timeout_s
        gone = self.ended
        while True:
            output = self._wait_status(max(0.0, until_s - time.monotonic()), gone)
            servers = len(json.loads(output)["servers"])
            if gone or servers >= len(self.server_names):
                return
            if time.monotonic() >= until_s:
                raise ClusterUnavailable(address=self.coordinator, reason=f"not ready within {timeout_s:g} s, servers registered: {servers}")
            time.sleep(0.1)  # a server that has just started is not registered yet, and the others have its partitions meanwhile

    def _wait_status(self, timeout_s: float, gone: Mapping[str, int]) -> str:
        """The survey of a cluster that accepts appends and, if no process is `gone`, whose registered nodes all answer."""
        command = [*WALTZ, "cluster", "status", self.coordinator, "--wait", str(timeout_s), "--output", "json", *([] if gone else ["--complete"])]
        environment = self.environment("operator")
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as waiting:
            try:
                while True:
                    try:
                        output, complaint = waiting.communicate(timeout=0.2)
                        break
                    except subprocess.TimeoutExpired:
                        fresh = [name for name in self.ended if name not in gone]
                        if fresh:
                            raise ClusterUnavailable(
                                address=self.coordinator, reason=f"{fresh[0]} ended while starting: {self._processes.how_ended(fresh[0])}"
                            ) from None
            finally:
                waiting.kill()
        if waiting.returncode != 0:
            error = ClusterUnavailable(address=self.coordinator, reason=f"not ready within {timeout_s:g} s, {_missing(output or complaint)}")
            for name in (*self.server_names, *self.storage_names):  # the directory, and the logs in it, may be gone when the error is read
                error.add_note(f"---- end of the log of {name}\n{self._processes.log_tail(name)}")
            raise error
        return output

    def close(self) -> None:
        """Stops servers, then storage nodes, then ZooKeeper; kills a process that does not stop. Does nothing if none runs."""
        if self._lock is None:
            return
        for names in (self.server_names, self.storage_names, ["zookeeper"]):
            self._processes.stop(names, STOP_TIMEOUT_S)
        self._processes.close()
        while self._held:
            self._held.popitem()[1].close()
        if "zookeeper" in self._ports:
            self._write()
        self._lock.close()
        self._lock = None

    # ---- one of it -----------------------------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> int:
        """Starts a process that does not run and returns its id. ZooKeeper answers when this returns; the others need a moment."""
        if self._lock is None:
            raise InvalidRequest(reason="the cluster is not open")
        if name not in ("zookeeper", *self.storage_names, *self.server_names):
            raise InvalidRequest(reason=f"no such process: {name}")
        port = self._port(name)
        if name == "zookeeper":
            tls = self.certificate("zookeeper", name) if self.secure else None
            folder = self.directory / "zookeeper"
            pid = self._processes.start(name, embedded.prepare(folder, port, tls=tls))
            self._identity = None if tls is None else ServedIdentity(folder, tls)
            embedded.wait_until_answering(HOST, port, START_TIMEOUT_S, lambda: self._processes.running(name), tls)
            if access_lists(tls).writers:
                close_served(f"{HOST}:{port}", tls)
        else:
            kind = name.partition("-")[0]
            pid = self._processes.start(name, [*self.program(name), kind, "--config", str(self._configure(kind, name, port))])
        self._write()
        return pid

    def _port(self, name: str) -> int:
        """The kept port, or another one if a stranger listens there. It is held until `close`, so that no other cluster gets it before a node that is
        not up yet, or that restarts."""
        if name not in self._held:
            self._held[name] = self._hold(name)
        self._ports[name] = self._held[name].number
        return self._ports[name]

    def _hold(self, name: str) -> HeldPort:
        with suppress(KeyError, OSError):
            return HeldPort(self._ports[name])
        return free_port()

    def _configure(self, kind: str, name: str, port: int) -> Path:
        settings: dict[str, Any] = {"coordinator": self.coordinator, "listen": f"{HOST}:{port}"}
        if kind == "storage":
            settings |= {"name": name, "directory": str(self.directory / name)} | self._storage_settings
        else:
            settings |= {"session_timeout_s": self._session_timeout_s} | self._server_settings
        if self._http:
            settings["http"] = {"port": self._port(f"{name} http")}
        if self.secure:
            settings["tls"] = self.certificate("node", name).model_dump(mode="json", include={"certificate", "key", "authorities"})
        path = self.directory / "conf" / f"{name}.yaml"
        make_private_directory(path.parent)
        write_private(path, yaml.safe_dump(settings).encode())
        self._write_targets()
        return path

    @property
    def http_addresses(self) -> dict[str, str]:
        """`host:port` of `/metrics`, by the names of nodes that were started with an endpoint."""
        names = [*self.server_names, *self.storage_names] if self._http else []
        return {name: f"{HOST}:{self._ports[f'{name} http']}" for name in names if f"{name} http" in self._ports}

    @property
    def targets_file(self) -> Path:
        """What Prometheus reads to find the nodes (`file_sd_configs`)."""
        return self.directory / "conf" / "targets.json"

    def _write_targets(self) -> None:
        jobs = {"server": "waltz-servers", "storage": "waltz-storage"}
        found = {job: [at for name, at in self.http_addresses.items() if name.startswith(kind)] for kind, job in jobs.items()}
        text = json.dumps([{"targets": targets, "labels": {"job": job}} for job, targets in found.items()], indent=2)
        write_private(self.targets_file, f"{text}\n".encode(), PUBLIC)

    def renew_zookeeper(self) -> None:
        """Lets ZooKeeper serve with certificate files that were replaced, and restarts it if the authorities changed. `wait_ended` calls it."""
        if self._identity is not None and self._processes.running("zookeeper") and self._identity.renew() == "restart":
            self._processes.stop(["zookeeper"], STOP_TIMEOUT_S)
            self.start("zookeeper")

    def kill(self, name: str) -> None:
        """SIGKILL; the process has ended when this returns."""
        self._processes.kill(name)

    def stop(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM; when this returns, the process has ended by itself or was killed after `timeout_s`. Returns the exit code."""
        if not self._processes.running(name):
            raise InvalidRequest(reason=f"{name} does not run")
        return self._processes.stop([name], timeout_s)[name]

    def pause(self, name: str) -> None:
        """SIGSTOP: the process is suspended, its connections stay open."""
        self._processes.signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT: the process continues."""
        self._processes.signal(name, signal.SIGCONT)

    def wait_ended(self, timeout_s: float | None = None) -> str | None:
        """Waits for a process that ends by itself and returns its name; None after `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        known = set(self.ended)
        while deadline is None or time.monotonic() < deadline:
            fresh = sorted(set(self.ended) - known)
            if fresh:
                return fresh[0]
            self.renew_zookeeper()
            time.sleep(0.2)
        return None

    def how_ended(self, name: str) -> str:
        """The signal or the exit code of a process that has ended, with the last line of its log if that explains it."""
        return self._processes.how_ended(name)
