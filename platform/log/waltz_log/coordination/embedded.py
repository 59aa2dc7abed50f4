"""A real ZooKeeper, run from the jars inside the installed `pyspark`: a single server for development, tests and small installations.

Decides its configuration and its command line; the caller starts and owns the process. One directory holds everything: `zoo.cfg`, the log
configuration and the data. Every write is synced, so it may be killed at any time. Only locates pyspark, never imports it.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from waltz_log.child_environment import utf8_locale
from waltz_log.coordination.java import find_java
from waltz_log.errors import ClusterUnavailable, WaltzError
from waltz_log.exit_codes import LACKING
from waltz_log.extras import install_advice
from waltz_log.untrusted_files import make_private_directory, write_private

if TYPE_CHECKING:  # `make setup` runs this module before any package is installed
    from waltz_log.security.settings import TlsSettings

__all__ = ["HEAP", "TICK_MS", "ZooKeeperJarsMissing", "answers", "answers_within", "find_jars", "prepare", "wait_until_answering"]

TICK_MS = 500
"""A session timeout is between 2 and 20 ticks: 1 to 10 s. With a shorter tick a busy laptop would lose sessions; a longer one slows fail-over."""

HEAP = "1g"
"""The limit, of which an idle ZooKeeper uses 120 MB, and one with thousands of partitions a few MB more. ZooKeeper keeps the last 500 requests that
write, the refused ones too, of at most a megabyte each, and requests of more than 64 KiB that are under way share 32 MiB. With half of this heap, a
client without any right could end the process. At the limit it ends, so that its supervisor starts it again, with all data: every write is synced."""

REQUEST_BYTES_MAX = 1_048_575
"""For one request, and so of one node's value. It is ZooKeeper's default, written out because memory is bounded by it."""

HANDSHAKES_MAX = 250
"""TLS handshakes under way at once; more connections are dropped before theirs begins."""

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
largeRequestThreshold=65536
largeRequestMaxBytes=33554432
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
ssl.trustStore.type=PKCS12
ssl.trustStore.location={authorities}
ssl.trustStore.password={password}
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider
enforce.auth.enabled=true
enforce.auth.schemes=x509"""

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
    advice = f"{install_advice('spark')}, or name an external ensemble"
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
    certificate of the authorities; `ServedIdentity.renew` follows the files.

    Raises `JavaMissing`, `ZooKeeperJarsMissing`, and `OSError` if the directory cannot be written, or if Java could not name it.
    """
    from waltz_log.coordination.served_identity import PASSWORD, ServedIdentity

    java, _ = find_java()
    classpath = ":".join(str(jar) for jar in find_jars())
    directory = directory.resolve()
    encoding = utf8_locale(os.environ)
    if encoding is None and not str(directory).isascii():
        raise OSError(f"no locale with UTF-8, without which Java cannot open {directory}; install C.UTF-8 or en_US.UTF-8")
    make_private_directory(directory / "data")
    config, logs = directory / "zoo.cfg", directory / "log4j2.properties"
    listen, superuser = PLAIN.format(port=port, host=host), []
    if tls is not None:
        identity = ServedIdentity(directory, tls)
        files = {"identity": property_value(str(identity.identity)), "authorities": property_value(str(identity.authorities))}
        listen = ENCRYPTED.format(port=port, host=host, password=PASSWORD, **files)
        superuser = _superuser(tls)
    write_private(config, ZOO_CFG.format(data=property_value(str(directory / "data")), listen=listen, tick_ms=TICK_MS).encode())
    write_private(logs, LOG_CFG.encode())
    return [
        *("/usr/bin/env", "-u", "_JAVA_OPTIONS", *([] if encoding is None else [f"LC_ALL={encoding}"])),
        str(java),
        f"-Xmx{HEAP}",
        *superuser,
        f"-Djute.maxbuffer={REQUEST_BYTES_MAX}",
        f"-Dzookeeper.netty.server.outstandingHandshake.limit={HANDSHAKES_MAX}",
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


def property_value(text: str) -> str:
    """The text as the value in a file of Java's properties, which Java reads as Latin-1 and in which a backslash begins an escape."""
    units = text.encode("utf-16-be")
    escaped = []
    for unit in (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)):
        plain = 0x20 < unit < 0x7F and chr(unit) not in "\\:=#!"
        escaped.append(chr(unit) if plain else f"\\u{unit:04x}")
    return "".join(escaped)


def _superuser(tls: TlsSettings) -> list[str]:
    """Gives the subject of this process's certificate every right, whatever a node's access control list says: it closes the root after the port is
    open, and a stranger may have been faster."""
    from waltz_log.security.certificates import subject_of

    subject = subject_of(tls)
    return [f"-Dzookeeper.X509AuthenticationProvider.superUser={subject}"] if subject in tls.coordinator_writers else []


def answers(host: str, port: int, timeout_s: float = 1.0, tls: TlsSettings | None = None) -> bool:
    """Whether a ZooKeeper that serves clients listens there. `tls`: the certificates to ask it with."""
    connect: Callable[..., socket.socket] = socket.create_connection
    if tls is not None:
        from waltz_log.coordination.secure_connection import SecureConnections
        from waltz_log.security.certificates import Certificates

        connect = SecureConnections(Certificates(tls)).create
    try:
        with connect((host, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(b"srvr")
            said = b""
            while chunk := connection.recv(4096):
                said += chunk
    except OSError:
        return False
    return b"Zookeeper version" in said


def wait_until_answering(host: str, port: int, timeout_s: float, running: Callable[[], bool] = lambda: True, tls: TlsSettings | None = None) -> None:
    """Returns once the server serves. Raises `ClusterUnavailable` after `timeout_s`, or as soon as `running` says no."""
    if not answers_within(host, port, timeout_s, running, tls):
        raise ClusterUnavailable(address=f"{host}:{port}", reason=f"zookeeper did not start within {timeout_s:g} s")


def answers_within(host: str, port: int, timeout_s: float, running: Callable[[], bool], tls: TlsSettings | None = None) -> bool:
    """Whether the server serves within the time. Raises `ClusterUnavailable` as soon as `running` says no."""
    deadline = time.monotonic() + timeout_s
    while not answers(host, port, tls=tls):
        if not running():
            raise ClusterUnavailable(address=f"{host}:{port}", reason="zookeeper ended while starting")
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
