"""Three Kafka brokers on loopback to compare with: their own quorum (KRaft) and replication 3. Each batch is on disk at every in-sync replica before
it is answered (`acks=all`); those are all three while none lags.

Needs Kafka's jars in a folder. Everything it starts ends with the context.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from waltz_log.coordination.java import find_java
from waltz_log.processes import launch

__all__ = ["KafkaCluster", "class_path", "free_ports", "kafka_cluster"]

BROKERS = 3
READY_S = 60.0
RUN_S = 300.0
RESUME_S = 0.5
"""After a suspension: time for what was due meanwhile, such as heartbeats."""

UNNOTICED_MS = 600_000
"""Of the timeouts that would end something because of a suspension: sessions of brokers, replicas in sync, leaders of the quorum."""

HEAP = "-Xmx768m"


class KafkaCluster:
    def __init__(self, jars: Path, directory: Path, addresses: str, brokers: Sequence[subprocess.Popen[bytes]]) -> None:
        self._jars = jars
        self._directory = directory
        self._brokers = brokers
        self.addresses = addresses

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """The brokers use no processor meanwhile. Idle ones use 6 to 12 % of one, in bursts twice a second."""
        for broker in self._brokers:
            broker.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for broker in self._brokers:
                broker.send_signal(signal.SIGCONT)
            time.sleep(RESUME_S)

    def create_topic(self, topic: str, *, partitions: int, synced: bool = True) -> None:
        """`synced`: each replica flushes every message (`flush.messages=1`), as the platform does. A batch is written at once. Without it, the
        operating system writes the records later, as in most clusters."""
        config = (*(("flush.messages=1",) if synced else ()), "min.insync.replicas=2")
        command = ["org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.addresses, "--create", "--topic", topic]
        command += ["--partitions", str(partitions), "--replication-factor", str(BROKERS)]
        self._run(*command, *(part for each in config for part in ("--config", each)))

    def _run(self, *arguments: str) -> str:
        return _finished(_java(self._jars, *arguments), self._directory)


@contextmanager
def kafka_cluster(jars: Path, directory: Path) -> Iterator[KafkaCluster]:
    ports = free_ports(2 * BROKERS)
    clients, controllers = ports[:BROKERS], ports[BROKERS:]
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers))
    with ExitStack() as stack:
        brokers = []
        for number, (client, controller) in enumerate(zip(clients, controllers, strict=True)):
            home = directory / f"broker-{number}"
            home.mkdir(parents=True)
            properties = home / "server.properties"
            properties.write_text(
                "\n".join(
                    (
                        "process.roles=broker,controller",
                        f"node.id={number}",
                        f"controller.quorum.voters={voters}",
                        f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
                        f"advertised.listeners=PLAINTEXT://127.0.0.1:{client}",
                        "controller.listener.names=CONTROLLER",
                        f"log.dirs={home / 'data'}",
                        f"offsets.topic.replication.factor={BROKERS}",
                        "auto.create.topics.enable=false",
                        f"broker.session.timeout.ms={UNNOTICED_MS}",
                        f"controller.quorum.fetch.timeout.ms={UNNOTICED_MS}",
                        f"replica.lag.time.max.ms={UNNOTICED_MS}",
                    )
                )
            )
            format_disk = _java(jars, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(properties))
            _finished(format_disk, home)
            brokers.append(stack.enter_context(_broker(_java(jars, "kafka.Kafka", str(properties)), home)))
        addresses = ",".join(f"127.0.0.1:{port}" for port in clients)
        cluster = KafkaCluster(jars, directory, addresses, brokers)
        _wait_ready(clients)
        yield cluster


def _finished(command: list[str], directory: Path) -> str:
    """The broker's output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False, cwd=directory)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a tool of Kafka did not end in time: timeout_s={RUN_S:.0f} command={command[-1]}") from None
    if done.returncode != 0:
        raise RuntimeError(f"a tool of Kafka failed: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


@contextmanager
def _broker(command: list[str], home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_ready(ports: list[int]) -> None:
    deadline_s = time.monotonic() + READY_S
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"a Kafka broker did not come up within {READY_S:.0f} s") from None
                time.sleep(0.2)


def _java(jars: Path, *arguments: str) -> list[str]:
    java, _ = find_java()
    ends_with_us = (sys.executable, "-I", "-S", launch.__file__, str(os.getpid()))  # ends when this process ends, for any reason
    return [*ends_with_us, str(java), HEAP, "-cp", class_path(jars), *arguments]


def class_path(jars: Path) -> str:
    of_spark = Path(pyspark.__file__).parent / "jars"
    scala = of_spark.glob("scala-library-*")  # Spark's resolver leaves out what Spark has
    return ":".join((f"{jars}/*", *map(str, scala)))


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
