"""A real ZooKeeper, run from the jars inside the installed `pyspark`: a single server for development, tests and small installations.

Decides its configuration and its command line; the caller starts and owns the process. One directory holds everything: `zoo.cfg`, the log
configuration and the data. Every write is synced, so it may be killed at any time. Only locates pyspark, never imports it.
"""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from waltz_log.coordination.java import find_java
from waltz_log.errors import ClusterUnavailable, WaltzError
from waltz_log.exit_codes import LACKING
from waltz_log.extras import install_command

if TYPE_CHECKING:  # `make setup` runs this module before any package is installed
    from waltz_log.security.settings import TlsSettings

__all__ = ["HEAP", "TICK_MS", "ZooKeeperJarsMissing", "answers", "find_jars", "prepare", "wait_until_answering"]

TICK_MS = 500
"""A session timeout is between 2 and 20 ticks: 1 to 10 s. With a shorter tick a busy laptop would lose sessions; a longer one slows fail-over."""

HEAP = "256m"
"""Metadata of thousands of partitions needs a few MB; ZooKeeper itself uses 120 MB of memory when idle."""

JARS = ("zookeeper-*", "slf4j-api-*", "log4j-api-*", "log4j-core-*", "log4j-slf4j2-impl-*", "metrics-core-*", "snappy-java-*", "netty-*")
"""The jars among Spark's 250 that the server needs; with all of them it takes twice as long to start and twice the memory."""

ZOO_CFG = """\
# Written at each start; changes here are lost.
dataDir={data}
{listen}
tickTime={tick_ms}
maxClientCnxns=0
admin.enableServer=false
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
4lw.commands.whitelist=ruok,srvr
"""

PLAIN = """\
clientPort={port}
clientPortAddress={host}"""

ENCRYPTED = """\
secureClientPort={port}
secureClientPortAddress={host}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.protocol=TLSv1.3
ssl.enabledProtocols=TLSv1.3
ssl.clientAuth=need
ssl.keyStore.type=PEM
ssl.keyStore.location={identity}
ssl.trustStore.type=PEM
ssl.trustStore.location={authorities}
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider"""

LOG_CFG = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} level=%p logger=%c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class ZooKeeperJarsMissing(WaltzError):
    """The jars that hold ZooKeeper are not installed. Nothing was started.

    To do: install the extra `spark`, or name an external ensemble."""

    text = "no zookeeper jars"
    exit_code = LACKING
    advice = f"{install_command('spark')}, or name an external ensemble"
    reason: str


def find_jars() -> list[Path]:
    """The jars of the installed pyspark that make a ZooKeeper. Raises `ZooKeeperJarsMissing`."""
    spec = importlib.util.find_spec("pyspark")  # for a top-level name this does not import anything
    if spec is None or not spec.submodule_search_locations:
        raise ZooKeeperJarsMissing(reason="pyspark is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    found = [jar for pattern in JARS for jar in sorted(folder.glob(f"{pattern}.jar"))]
    if not any(jar.name.startswith("zookeeper-") for jar in found):
        raise ZooKeeperJarsMissing(reason=f"none in {folder}")
    return found


def prepare(directory: Path, port: int, host: str = "127.0.0.1", tls: TlsSettings | None = None) -> list[str]:
    """Writes the configuration and gives the command that serves the directory's data at the address. With `tls` it serves only clients with a
    certificate of the authorities.

    Raises `JavaMissing`, `ZooKeeperJarsMissing`, and `OSError` if the directory cannot be written.
    """
    java, _ = find_java()
    classpath = ":".join(str(jar) for jar in find_jars())
    directory = directory.resolve()
    (directory / "data").mkdir(parents=True, exist_ok=True)
    config, logs = directory / "zoo.cfg", directory / "log4j2.properties"
    listen = PLAIN.format(port=port, host=host)
    if tls is not None:
        identity = directory / "identity.pem"
        identity.touch(0o600)
        identity.write_bytes(tls.key.read_bytes() + tls.certificate.read_bytes())
        listen = ENCRYPTED.format(port=port, host=host, identity=identity, authorities=tls.authorities.resolve())
    config.write_text(ZOO_CFG.format(data=directory / "data", listen=listen, tick_ms=TICK_MS))
    logs.write_text(LOG_CFG)
    return [
        str(java),
        f"-Xmx{HEAP}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Dlog4j2.configurationFile={logs}",
        "-Dlog4j2.disableJmx=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dzookeeper.preAllocSize=4096",
        "-cp",
        classpath,
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(config),
    ]


def answers(host: str, port: int, timeout_s: float = 1.0, tls: TlsSettings | None = None) -> bool:
    """Whether a ZooKeeper that serves clients listens there. `tls`: the certificates to ask it with."""
    context = None
    if tls is not None:
        from waltz_log.security.certificates import Certificates

        context = Certificates(tls).client_context()
    try:
        with ExitStack() as stack:
            connection: socket.socket = stack.enter_context(socket.create_connection((host, port), timeout=timeout_s))
            connection.settimeout(timeout_s)
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
            connection.sendall(b"srvr")
            said = b""
            while chunk := connection.recv(4096):
                said += chunk
    except OSError:
        return False
    return b"Zookeeper version" in said


def wait_until_answering(host: str, port: int, timeout_s: float, running: Callable[[], bool] = lambda: True, tls: TlsSettings | None = None) -> None:
    """Returns once the server serves. Raises `ClusterUnavailable` after `timeout_s`, or as soon as `running` says no."""
    deadline = time.monotonic() + timeout_s
    while not answers(host, port, tls=tls):
        if not running():
            raise ClusterUnavailable(address=f"{host}:{port}", reason="zookeeper ended while starting")
        if time.monotonic() > deadline:
            raise ClusterUnavailable(address=f"{host}:{port}", reason=f"zookeeper did not start within {timeout_s:g} s")
        time.sleep(0.05)
