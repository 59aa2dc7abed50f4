"""Kafka's two clients under the platform's loads.

`ConfluentLoads` is an application in Python: confluent-kafka (librdkafka) in this process. `produce` has a call and a callback for each record,
`produce_batch` a call for many of them, which is its fastest interface. `JavaTool` is Kafka's own
ProducerPerformance in one JVM for all runs, so that its code is compiled after the warm-up rounds. A new process for each run would be measured cold.

The latency of an open loop counts from the moment a record is due for confluent-kafka, as it does for the platform. Java's tool counts from the call
that sends, which leaves out the tool's own delay.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.load import DATA, SAMPLE_EVERY, TICK_S, Load
from benchmarks.peers.kafka_cluster import HEAP, KafkaCluster, class_path
from waltz_log.coordination.java import find_java

__all__ = ["BEHIND_S", "ConfluentLoads", "JavaTool", "Produced", "ProducerSettings", "java_tool", "parsed"]

WAIT_S = 0.1
DRAIN_S = 120.0
QUEUE_RECORDS = 2_000_000
"""An open loop never drops records. A record that cannot be sent yet waits in the client, and the wait counts."""

BEHIND_S = 1.0
"""An open loop that is this far behind its rate is ended: the settings cannot sustain it, and draining the backlog would take minutes. Each
unanswered record counts with its delay at that moment."""

QUEUE_KIB = 1_048_576
BATCH_RECORDS = 1_000
"""Records of one call of `produce_batch`. More change nothing: librdkafka makes its own batches by size and linger."""

BATCHES_IN_WINDOW = 8
"""Calls of `produce_batch` in flight, at the least: those of large records have fewer records. One call with more bytes than the window has is never
answered: 1,000 records of 100 KiB."""

RECORD_OVERHEAD_BYTES = 62
"""Of a record of 200 bytes in the buffer of Java's client, which bounds what is in flight if it sends as fast as it can."""

OPEN_BUFFER_BYTES = 64 * 1024 * 1024

_RESULT = re.compile(r"(\d+) records sent, ([\d.]+) records/sec .*?([\d.]+) ms avg latency.* (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th")


@dataclass(frozen=True)
class ProducerSettings:
    """Settings of a producer. `batch_bytes` None: the client's own default, 16 KiB for Java, 1 MB for librdkafka."""

    linger_ms: int
    batch_bytes: int | None
    compression: str = "none"

    def document(self) -> dict[str, str | int]:
        batch = {} if self.batch_bytes is None else {"batch.size": self.batch_bytes}
        return {"acks": "all", "linger.ms": self.linger_ms, "compression.type": self.compression, **batch}


# ---- confluent-kafka -------------------------------------------------------------------------------------------------------------------------------


class _Producer(Protocol):
    def produce(self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[[Any, Any], None]) -> None: ...

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], *, partition: int, on_delivery: Callable[[Any, Any], None]) -> int: ...

    def poll(self, timeout: float) -> int: ...

    def flush(self, timeout: float) -> int: ...

    def purge(self) -> None: ...


class ConfluentLoads:
    """The loads of `benchmarks.load`, with a callback instead of a future. A record that was not delivered raises `RuntimeError`."""

    def __init__(self, producer: _Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._answered = 0
        self._error: Any = None

    @classmethod
    def connect(cls, addresses: str, topic: str, settings: ProducerSettings) -> ConfluentLoads:
        from confluent_kafka import Producer  # only this command needs it

        quiet = {"log_level": 0}  # brokers that stop at the end of the run need no log line; a record that is not delivered raises an error
        queue = {"queue.buffering.max.messages": QUEUE_RECORDS, "queue.buffering.max.kbytes": QUEUE_KIB}
        return cls(Producer({"bootstrap.servers": addresses, **settings.document(), **queue, **quiet}), topic)

    def single(self, count: int) -> Load:
        latencies_ms: list[float] = []
        began_s = time.perf_counter()
        for number in range(count):
            start_s = time.perf_counter()
            self._produce(0, DATA, self._delivered)
            self._wait_for(number + 1)
            latencies_ms.append((time.perf_counter() - start_s) * 1000)
        return self._ended(Load(count, time.perf_counter() - began_s, latencies_ms))

    def pipelined(self, count: int, *, window: int, partitions: int = 1, data: bytes = DATA) -> Load:
        latencies_ms: list[float] = []
        began_s = time.perf_counter()
        for number in range(count):
            if number - self._answered >= window:
                self._wait_for(number - window + 1)
            sampled = number % SAMPLE_EVERY == 0
            self._produce(number % partitions, data, self._timing(latencies_ms, time.perf_counter()) if sampled else self._delivered)
        self._wait_for(count)
        return self._ended(Load(count, time.perf_counter() - began_s, latencies_ms))

    def batched(self, count: int, *, window: int, partitions: int = 1, data: bytes = DATA) -> Load:
        """By `produce_batch`. A batch goes to one partition, the next one to the next partition."""
        began_s = time.perf_counter()
        sent = 0
        batch = min(BATCH_RECORDS, max(1, window // BATCHES_IN_WINDOW))
        for number in range(-(-count // batch)):
            messages = [{"value": data} for _ in range(min(batch, count - sent))]
            sent += len(messages)
            if sent - self._answered > window:
                self._wait_for(sent - window)
            queued = self._producer.produce_batch(self._topic, messages, partition=number % partitions, on_delivery=self._delivered)
            if queued != len(messages):
                raise RuntimeError(f"Kafka's client queued {queued} of {len(messages)} records")
        self._wait_for(count)
        return self._ended(Load(count, time.perf_counter() - began_s, []))

    def offered(self, count: int, *, rate: float) -> Load:
        latencies_ms: list[float] = []
        sent = 0
        began_s = time.perf_counter()
        while sent < count:
            due = min(count, 1 + int((time.perf_counter() - began_s) * rate))  # number 0 is due at once
            for number in range(sent, due):
                sampled = number % SAMPLE_EVERY == 0
                self._produce(0, DATA, self._timing(latencies_ms, began_s + number / rate) if sampled else self._delivered)
            sent = due
            self._producer.poll(TICK_S)
            if time.perf_counter() - began_s - self._answered / rate > BEHIND_S:
                return self._given_up(sent, began_s, latencies_ms)
        self._wait_for(count)
        return self._ended(Load(count, time.perf_counter() - began_s, latencies_ms))

    def _produce(self, partition: int, data: bytes, on_delivery: Callable[[Any, Any], None]) -> None:
        self._producer.produce(self._topic, data, partition=partition, on_delivery=on_delivery)

    def _delivered(self, error: Any, _: Any) -> None:
        self._answered += 1
        if error is not None:
            self._error = error

    def _timing(self, latencies_ms: list[float], start_s: float) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            latencies_ms.append((time.perf_counter() - start_s) * 1000)
            self._delivered(error, message)

        return delivered

    def _wait_for(self, answered: int) -> None:
        deadline_s = time.monotonic() + DRAIN_S
        while self._answered < answered:
            self._producer.poll(WAIT_S)
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"Kafka did not answer in time: answered={self._answered} wanted={answered} timeout_s={DRAIN_S:.0f}")

    def _given_up(self, sent: int, began_s: float, latencies_ms: list[float]) -> Load:
        """Drops the backlog. The callback of each dropped record reports it; it does not count as a failure of Kafka."""
        self._producer.purge()
        self._wait_for(sent)
        self._error = None
        return self._ended(Load(sent, time.perf_counter() - began_s, latencies_ms))

    def _ended(self, load: Load) -> Load:
        self._producer.flush(DRAIN_S)
        self._answered = 0
        if self._error is not None:
            raise RuntimeError(f"Kafka did not deliver a record: {self._error}")
        return load


# ---- Java's tool -----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Produced:
    """What Java's tool reports at the end. Latencies are in whole milliseconds."""

    count: int
    rate: float
    mean_ms: float
    p50_ms: int
    p99_ms: int


def parsed(output: str) -> Produced:
    found = _RESULT.findall(output)
    if not found:
        raise RuntimeError(f"Kafka's performance tool reported no result: {output[-500:]}")
    count, rate, mean, p50, _, p99 = found[-1]
    return Produced(int(count), float(rate), float(mean), int(p50), int(p99))


class JavaTool:
    def __init__(self, run: Callable[[list[str]], str], addresses: str) -> None:
        self._run = run
        self._addresses = addresses

    def produce(self, topic: str, count: int, *, record_bytes: int, per_s: int, settings: Mapping[str, str | int], window: int = 0) -> Produced:
        """`per_s` -1: as fast as possible, with about `window` records in flight."""
        buffer = window * (record_bytes + RECORD_OVERHEAD_BYTES) if per_s < 0 else OPEN_BUFFER_BYTES
        given = [f"{name}={value}" for name, value in {"bootstrap.servers": self._addresses, "buffer.memory": buffer, **settings}.items()]
        size = ["--num-records", str(count), "--record-size", str(record_bytes), "--throughput", str(per_s)]
        return parsed(self._run(["--topic", topic, *size, "--producer-props", *given]))


@contextmanager
def java_tool(jars: Path, kafka: KafkaCluster) -> Iterator[JavaTool]:
    """The tool in a JVM of its own, which ends with the context and with this process."""
    import py4j.java_gateway as py4j  # comes with Spark
    import pyspark

    (bridge,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    java, _ = find_java()
    lines: deque[str] = deque()
    port, process = py4j.launch_gateway(
        jarpath=str(bridge),
        classpath=class_path(jars),
        javaopts=[HEAP],
        java_path=str(java),
        die_on_exit=True,
        redirect_stdout=lines,
        return_proc=True,
    )
    gateway = py4j.JavaGateway(gateway_parameters=py4j.GatewayParameters(port=port))

    def run(arguments: list[str]) -> str:
        lines.clear()
        array = gateway.new_array(gateway.jvm.java.lang.String, len(arguments))
        for number, argument in enumerate(arguments):
            array[number] = argument
        gateway.jvm.org.apache.kafka.tools.ProducerPerformance.main(array)
        return _settled(lines)

    try:
        yield JavaTool(run, kafka.addresses)
    finally:
        gateway.shutdown()
        process.kill()
        process.wait()


def _settled(lines: deque[str]) -> str:
    """Waits for the last line, which arrives through a pipe shortly after the call returns."""
    deadline_s = time.monotonic() + WAIT_S * 50
    while "99.9th" not in "".join(lines) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return "\n".join(lines)
