"""Assigns partitions to servers: a pure function of the previous assignment, the live servers and their preferences (Client-Server Communication,
Generation Number). As in the original, preferred servers come first, a balanced assignment stays, and the remaining partitions are distributed. What
an operator decided precedes preferences: partitions that were moved to a server, and servers that are drained.

The generation of a partition rises whenever its owner changes, also when it loses its owner, and never otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from waltz_log.core.metadata import Assignment, HandedOver, Ownership, ServerEntry

__all__ = ["assign"]


def assign(previous: Assignment, servers: Sequence[ServerEntry], partitions: int) -> Assignment:
    """Assigns every partition to one of `servers`: the one that it was moved to, else the first that prefers it, else its current owner while that
    server is within its share, else the least loaded server.

    A partition that was handed over for lack of a majority (`core.hand_over`) stays with its owner. It is not assigned to a server that it avoids
    while another server is alive. A server that any partition avoids keeps its partitions and gets no new ones, because it may not reach their
    replicas either.

    A drained server owns nothing while another one is alive, except partitions that all the others avoid.

    `partitions`: how many the caller knows of. Partitions that `previous` assigns beyond them are assigned too. Partitions are only ever added, and a
    manager that does not know the newest ones yet must not drop them and their generations from the assignment."""
    partitions = max((partitions, *(partition + 1 for partition in previous.partitions)))
    alive = sorted(servers, key=lambda server: server.server_id)
    ids = [server.server_id for server in alive]
    handed = _living(previous.handed_over, ids)
    owners: dict[int, int | None] = dict.fromkeys(range(partitions))
    if alive:
        usable = [server for server in alive if server.address not in previous.drained] or alive
        before = {p: owned.server_id for p, owned in previous.partitions.items()}
        avoids = {p: each.avoids for p, each in handed.items() if each.avoids}
        others = {server.server_id for server in usable}
        stuck = {p for p, avoided in avoids.items() if others <= set(avoided) and before.get(p) in ids and before.get(p) not in others}
        free: dict[int, int | None] = {p: None for p in owners if p not in stuck}
        _assign(free, before, usable, {p: each for p, each in avoids.items() if p not in stuck}, previous.moved)
        owners |= free | {p: before[p] for p in stuck}
    result: dict[int, Ownership] = {}
    for partition, owner in owners.items():
        owned = previous.partitions.get(partition, Ownership(None, 0))
        result[partition] = owned if owned.server_id == owner else Ownership(owner, owned.generation + 1)
    workers = {server.server_id: server.workers for server in alive if server.workers}
    return replace(previous, partitions=result, addresses={server.server_id: server.address for server in alive}, workers=workers, handed_over=handed)


def _living(handed_over: Mapping[int, HandedOver], ids: Sequence[int]) -> dict[int, HandedOver]:
    """Without servers that are gone. A server that returns has another id."""
    return {p: HandedOver(tuple(server for server in each.avoids if server in ids), each.moves) for p, each in handed_over.items()}


def _assign(
    owners: dict[int, int | None],
    before: Mapping[int, int | None],
    alive: Sequence[ServerEntry],
    avoids: Mapping[int, Sequence[int]],
    moved: Mapping[int, str],
) -> None:
    """Fills `owners` in."""
    ids = [server.server_id for server in alive]
    load = dict.fromkeys(ids, 0)
    avoided = {server for servers in avoids.values() for server in servers}
    takers = [server for server in ids if server not in avoided] or ids

    def own(partition: int, server: int) -> None:
        owners[partition] = server
        load[server] += 1

    def may(partition: int, server: int | None) -> bool:
        """Whether the partition may stay at, or go to, the server."""
        return server in load and server not in avoids.get(partition, ()) and (server in takers or before.get(partition) == server)

    for partition in avoids:
        if partition in owners and (owner := before.get(partition)) is not None and may(partition, owner):
            own(partition, owner)
    at = {server.address: server.server_id for server in alive}
    wanted = [(partition, at[address]) for partition, address in sorted(moved.items()) if address in at]
    wanted += [(partition, server.server_id) for server in alive for partition in server.preferred]
    for partition, preferred in wanted:
        if partition in owners and owners[partition] is None and may(partition, preferred):
            own(partition, preferred)
    share, larger = divmod(len(owners), len(ids))
    if len(takers) < len(ids):
        larger = 0
        for partition in owners:
            owner = before.get(partition)
            if owners[partition] is None and owner is not None and owner not in takers and may(partition, owner) and load[owner] <= share:
                own(partition, owner)
        share, larger = divmod(len(owners) - sum(load[server] for server in ids if server not in takers), len(takers))
    for partition in owners:
        owner = before.get(partition)
        if owners[partition] is not None or owner is None or owner not in takers or not may(partition, owner):
            continue
        if load[owner] < share or (load[owner] == share and larger > 0):
            larger -= load[owner] == share
            own(partition, owner)
    for partition in owners:
        if owners[partition] is None:
            able = [server for server in takers if may(partition, server)] or [server for server in ids if server not in avoids.get(partition, ())]
            # Where every living server is avoided, a change of owner would gain nothing.
            able = able or [server for server in ids if server == before.get(partition)] or ids
            own(partition, min(able, key=lambda server: (load[server], server)))
