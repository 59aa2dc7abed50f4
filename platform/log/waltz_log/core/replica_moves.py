"""Which replicas move where when a storage node is drained, or when nodes are to hold the same number of replicas again. Pure: the moves that are
left follow from the present assignment, so an interrupted command plans again and goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from waltz_log.core.metadata import ReplicaMove

__all__ = ["plan_drain", "plan_rebalance", "replicas_held"]

Replicas = Mapping[int, tuple[str, ...]]


def replicas_held(replicas: Replicas, nodes: Collection[str]) -> dict[str, int]:
    """How many replicas each of the nodes holds."""
    load = dict.fromkeys(sorted(nodes), 0)
    for names in replicas.values():
        for name in names:
            if name in load:
                load[name] += 1
    return load


def plan_drain(replicas: Replicas, node: str, able: Collection[str]) -> tuple[list[ReplicaMove], list[int]]:
    """The moves that empty `node`, and the partitions for which no other node is left. `able`: nodes that may get replicas. Each replica goes to the
    one that holds fewest then, of those that do not hold the partition."""
    load = replicas_held(replicas, set(able) - {node})
    moves: list[ReplicaMove] = []
    stuck: list[int] = []
    for partition, names in sorted(replicas.items()):
        if node not in names:
            continue
        free = [name for name in load if name not in names]
        if not free:
            stuck.append(partition)
            continue
        target = min(free, key=lambda name: (load[name], name))
        load[target] += 1
        moves.append(ReplicaMove(partition, node, target))
    return moves, stuck


def plan_rebalance(replicas: Replicas, able: Collection[str]) -> list[ReplicaMove]:
    """The moves after which no node of `able` holds more than one replica more than another one, as far as that is possible. Each partition moves at
    most one replica. Nodes that are not able keep what they hold."""
    held = {partition: list(names) for partition, names in sorted(replicas.items())}
    load = replicas_held(replicas, able)
    moves: dict[int, ReplicaMove] = {}
    while (move := _next_move(held, load, moves)) is not None:
        moves[move.partition] = move
        load[move.remove] -= 1
        load[move.add] += 1
    return list(moves.values())


def _next_move(held: Mapping[int, list[str]], load: Mapping[str, int], moved: Collection[int]) -> ReplicaMove | None:
    """From the fullest node to the emptiest one, where the difference is more than one."""
    for full in sorted(load, key=lambda name: (-load[name], name)):
        for empty in sorted(load, key=lambda name: (load[name], name)):
            if load[full] - load[empty] < 2:
                break
            for partition, names in held.items():
                if partition not in moved and full in names and empty not in names:
                    return ReplicaMove(partition, full, empty)
    return None
