"""The handlers of a cluster in memory behind real ports: a matrix of calls can be asked over mutual TLS as it is in memory."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from waltz_log.core.ports import Channel
from waltz_log.core.topics.sharding import Shard, worker_of
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["Connect", "assert_test_exists", "served_at_ports"]

ROOT = Path(__file__).parents[3]

Connect = Callable[[str], Channel]
"""The channel of a host: `role-name`, whose certificate it shows."""


@asynccontextmanager
async def served_at_ports(cluster: MemoryCluster, directory: Path, kind: str) -> AsyncIterator[Connect]:
    """A log server and a storage node at one port. `kind`: `alone`, or `worker`: the port of a worker that passes calls of partition 0 on."""
    ((server, _),) = cluster.servers.values()
    ((node, _),) = cluster.storages.values()
    service, authority = [*server.service(), *node.service()], DevelopmentAuthority(directory)
    tls, channels = authority.issue("node", "served"), dict[str, Channel]()
    with ExitStack() as stack:
        if kind == "alone":
            listeners = [await GrpcNetwork(tls=tls).serve("127.0.0.1:0", service)]
        else:
            reserved = [stack.enter_context(closing(ReservedAddress("127.0.0.1:0"))) for _ in range(2)]
            siblings = [f"unix:{Path(stack.enter_context(TemporaryDirectory())) / str(worker)}" for worker in range(2)]
            networks = [WorkerNetwork(Shard(worker, 2), [each.address], siblings, tls=tls) for worker, each in enumerate(reserved)]
            listeners = [await each.serve("127.0.0.1:0", service) for each in networks]
        asked = listeners[0 if kind == "alone" else 1 - worker_of(0, 2)]

        def connect(host: str) -> Channel:
            if host not in channels:
                channels[host] = GrpcNetwork(tls=authority.issue(*host.split("-", 1))).connect(asked.address)
            return channels[host]

        try:
            yield connect
        finally:
            await asyncio.gather(*(each.close() for each in channels.values()))
            await asyncio.gather(*(each.close() for each in listeners))


def assert_test_exists(named: str) -> None:
    """`path::name`."""
    file, _, name = named.partition("::")
    functions = [each.name for each in ast.parse((ROOT / file).read_text()).body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert name in functions, named
