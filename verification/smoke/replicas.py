"""The contents of a partition on each storage node, as a digest of the bytes that the node serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from hashlib import blake2b

from waltz_log.core.metadata import CLUSTER, REPLICAS, STORAGE_NODES, ClusterParameters, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["digests"]

POLL_EVERY_S = 0.5
READ_BYTES = 1 << 20


async def digests(coordinator: Coordinator, network: Network, marks: Mapping[int, int], within_s: float) -> dict[int, dict[str, str]]:
    """For each partition up to its mark, node by node, once they agree or `within_s` is over: a replica may still be catching up."""
    found = {}
    for partition, mark in marks.items():
        deadline = time.monotonic() + within_s
        while True:
            held = await _partition(coordinator, network, partition, mark)
            if len(set(held.values())) == 1 or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_EVERY_S)
        found[partition] = held
    return found


async def _partition(coordinator: Coordinator, network: Network, partition: int, mark: int) -> dict[str, str]:
    parameters, replicas = await coordinator.get(CLUSTER), await coordinator.get(REPLICAS)
    if parameters is None or replicas is None:
        raise Unavailable(reason="no cluster there")
    key = ClusterParameters.from_bytes(parameters.data).key.bytes
    names = ReplicaAssignment.from_bytes(replicas.data).replicas[partition]
    nodes = {name: await coordinator.get(f"{STORAGE_NODES}/{name}") for name in names}
    return {
        name: f"{name} was never started"
        if node is None
        else await _digest(network, StorageNodeEntry.from_bytes(node.data).address, key, partition, mark)
        for name, node in nodes.items()
    }


async def _digest(network: Network, address: str, key: bytes, partition: int, mark: int) -> str:
    request = pb.ReadRequest(cluster_key=key, partition=partition, session=0, first_transaction_id=0, last_transaction_id=mark, max_bytes=READ_BYTES)
    channel = network.connect(address)
    digest, size = blake2b(digest_size=16), 0
    try:
        if mark >= 0:
            stream = channel.read(methods.READ, request)
            while (answer := await stream.receive()) is not None:
                for block in answer.blocks:
                    digest.update(block.records)
                    size += len(block.records)
    except WaltzError as error:
        return f"{address}: {error}"
    finally:
        await channel.close()
    return f"{digest.hexdigest()} {size}"
