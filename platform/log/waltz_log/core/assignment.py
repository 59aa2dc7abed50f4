"""Which server owns which partition: a pure function of what was, who is there, and what they prefer (seeds/client_server_communication.txt,
Generation Number; facts of the original: preferred first, keep what is balanced, hand out the rest).

The generation of a partition rises whenever its owner changes, also to nobody, and never otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_log.core.metadata import Assignment, Ownership, ServerEntry

__all__ = ["assign"]


def assign(previous: Assignment, servers: Sequence[ServerEntry], partitions: int) -> Assignment:
    """Every partition gets one of `servers`: the first that prefers it, else its owner while that one is within its share, else the least loaded.

    `partitions`: how many the caller knows of. What `previous` assigns beyond them is assigned as well: partitions are only ever added, and a manager
    that has not heard of the newest must not drop them, with their generations, from the assignment."""
    partitions = max((partitions, *(partition + 1 for partition in previous.partitions)))
    alive = sorted(servers, key=lambda server: server.server_id)
    owners: dict[int, int | None] = dict.fromkeys(range(partitions))
    if alive:
        ids = [server.server_id for server in alive]
        load = dict.fromkeys(ids, 0)
        for server in alive:
            for partition in server.preferred:
                if partition in owners and owners[partition] is None:
                    owners[partition] = server.server_id
                    load[server.server_id] += 1
        share, larger = divmod(partitions, len(alive))
        for partition in range(partitions):
            before = previous.partitions.get(partition)
            owner = None if before is None else before.server_id
            if owners[partition] is not None or owner is None or owner not in load:
                continue
            if load[owner] < share or (load[owner] == share and larger > 0):
                larger -= load[owner] == share
                owners[partition] = owner
                load[owner] += 1
        for partition in range(partitions):
            if owners[partition] is None:
                owner = min(ids, key=lambda server_id: (load[server_id], server_id))
                owners[partition] = owner
                load[owner] += 1
    result: dict[int, Ownership] = {}
    for partition, owner in owners.items():
        before = previous.partitions.get(partition, Ownership(None, 0))
        result[partition] = before if before.server_id == owner else Ownership(owner, before.generation + 1)
    workers = {server.server_id: server.workers for server in alive if server.workers}
    return Assignment(result, {server.server_id: server.address for server in alive}, workers)
