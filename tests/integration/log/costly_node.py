"""A node whose costs a test measures: the handlers of a log server and of a storage node behind one port, over mutual TLS, in a process of its own.

`python costly_node.py DIRECTORY alone|workers SETTINGS` uses the node's certificate in the directory, and prints a line of JSON when it serves. It
answers each line of its input with what it used since the line before: its memory, the most memory that it had meanwhile, and the processor time of
the longest callback of its event loop. A busy machine makes everything last longer, and makes no callback need more processor time."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import runpy
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from waltz_log.core.topics.sharding import Shard, worker_of
from waltz_log.processes.health import health_handler
from waltz_log.processes.serving import freeze_modules
from waltz_log.security.access import AccessControl
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.server.base.settings import ServerSettings
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import served_calls
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork

PARTITION = next(each for each in range(100) if worker_of(each, 2) == 1)
"""One that the first of two workers does not own."""

RECORDS, RECORD_BYTES = 64, 128 * 1024


class _Loop:
    """The longest callback of the event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        run = asyncio.events.Handle._run

        def timed(handle: Any) -> None:
            began_s = time.thread_time()
            run(handle)
            if (took_s := time.thread_time() - began_s) > self.longest_s:
                self.longest_s = took_s

        setattr(asyncio.events.Handle, "_run", timed)  # noqa: B010  # its type says that nothing else belongs there

    def longest(self) -> float:
        found, self.longest_s = self.longest_s, 0.0
        return found


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _peak_bytes() -> int:
    """The most memory that the process had since it was asked the last time."""
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(found.split()[1]) * 1024


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _permit(control: AccessControl) -> None:
    control.enforced = True
    principals = [f"spiffe://waltz/{role}/trusted-*" for role in ("application", "reader")]
    rules = tuple(Rule(principal=each, operations=tuple(Operation), resource="*") for each in principals)
    control.replace(AccessRules(rules=rules))


async def _serve(directory: Path, kind: str, given: dict[str, Any], loop: _Loop) -> None:
    served_calls.TOO_LARGE_S = 0.01  # type: ignore[misc]  # hundreds of requests that are too large are measured, one after the other
    if plant := given.pop("plant", None):  # a bug that a test of the tests plants
        runpy.run_path(str(Path(__file__).with_name("planted_costs.py")))["PLANTS"][plant]()
    cluster = MemoryCluster(partitions=PARTITION + 2, storages=1, servers=1, settings=given, storage_settings=given)
    await cluster.start()
    ((server, _),) = cluster.servers.values()
    ((node, _),) = cluster.storages.values()
    client = await cluster.connect()
    for _ in range(RECORDS):
        await client.append(PARTITION, bytes(RECORD_BYTES))
    await client.append(PARTITION + 1, b"there")
    await client.close()
    control = node.access.control = server._access
    _permit(control)
    tls = DevelopmentAuthority(directory).find("node", "served")
    assert tls is not None
    limits = ServerSettings(coordinator="unused", **given).connection_limits
    service = [*server.service(), *node.service()]
    with ExitStack() as stack:
        if kind == "alone":
            listeners = [await GrpcNetwork(limits=limits, tls=tls, beside=health_handler(_ready)).serve("127.0.0.1:0", service)]
        else:
            listeners = []
            reserved = [stack.enter_context(closing(ReservedAddress("127.0.0.1:0"))) for _ in range(2)]
            siblings = [f"unix:{Path(stack.enter_context(TemporaryDirectory())) / str(worker)}" for worker in range(2)]
            for worker, each in enumerate(reserved):
                network = WorkerNetwork(Shard(worker, 2), [each.address], siblings, limits=limits, tls=tls, beside=health_handler(_ready))
                listeners.append(await network.serve("127.0.0.1:0", service))
        print(json.dumps({"address": listeners[0].address, "key": cluster.key.hex}), flush=True)
        while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            longest_s, peak_bytes = loop.longest(), _peak_bytes()
            gc.collect()
            await asyncio.sleep(0.05)
            ctypes.CDLL(None).malloc_trim(0)  # free memory that the allocator has not returned yet belongs to no request
            _reset_peak()
            print(json.dumps({"resident_bytes": _resident_bytes(), "peak_bytes": peak_bytes, "longest_s": longest_s}), flush=True)
            loop.longest()
        await asyncio.gather(*(each.close() for each in listeners))
    await cluster.stop()


async def _ready() -> bool:
    return True


if __name__ == "__main__":
    freeze_modules()  # as every node does: a full collection belongs to no request, and would be counted for one
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), _Loop()))
