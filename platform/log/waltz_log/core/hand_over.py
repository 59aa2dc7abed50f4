"""Decides when a partition moves from an owner that reaches no majority of its replicas to a server that does. Pure.

An owner that has had no majority for a while publishes `Stranded`. Meanwhile all servers publish which of the partition's replicas answer their
pings. The manager hands the partition over only if the owner's pings confirm that it reaches no majority and another server's pings show that it
reaches one. If storage nodes are down, no server reaches a majority, and the partition stays.

A pause prevents flapping. It doubles with each hand-over of the partition. No partition is handed over again within its pause. A server that lost a
partition is not assigned it again (`HandedOver.avoids`, which `core.assignment` respects) until it has reached a majority for the whole pause without
a break. Safety depends on generations and fences, not on this.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from waltz_log.core.metadata import Assignment, HandedOver, Ownership, expect_numbers, expect_texts

__all__ = [
    "CALM_PAUSES",
    "Reach",
    "Stranded",
    "hand_over",
    "majority_of",
    "merge_reach",
    "parse_reach",
    "parse_stranded",
    "pause_s",
    "reach_to_bytes",
    "readmit",
    "stranded_to_bytes",
]

Reach = Mapping[int, Mapping[int, Collection[str]]]
"""By server and partition, the replicas that answer the server. A missing partition has not been pinged yet."""

DOUBLINGS_MAX = 6

CALM_PAUSES = 8
"""If no server was avoided for this many pauses, the next hand-over of the partition starts with the shortest pause again."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """What an owner publishes about a partition for which it reaches no majority of `replicas`."""

    server_id: int
    generation: int
    replicas: tuple[str, ...]


def majority_of(reached: Collection[str], replicas: Collection[str]) -> bool:
    return len(set(reached) & set(replicas)) > len(replicas) // 2


def pause_s(moves: int, after_s: float) -> float:
    """The pause after this many hand-overs. `after_s`: the setting `hand_over_after_s`."""
    return after_s * 2.0 ** min(max(moves - 1, 0), DOUBLINGS_MAX) if moves else 0.0


def hand_over(assignment: Assignment, stranded: Mapping[int, Stranded], reach: Reach, resting: Collection[int] = ()) -> Assignment:
    """Moves each stranded partition to a server that reaches a majority of its replicas, if its owner does not and another server does. `resting`:
    partitions whose pause after the last hand-over is not over."""
    partitions, handed = dict(assignment.partitions), dict(assignment.handed_over)
    load = dict.fromkeys(assignment.addresses, 0)
    for owned in partitions.values():
        if owned.server_id in load:
            load[owned.server_id] += 1
    for partition, report in sorted(stranded.items()):
        owned = partitions.get(partition, Ownership(None, 0))
        if owned != Ownership(report.server_id, report.generation) or partition in resting:
            continue
        own = reach.get(report.server_id, {}).get(partition)
        if own is None or majority_of(own, report.replicas):
            continue
        able = [
            server for server in sorted(load) if server != report.server_id and majority_of(reach.get(server, {}).get(partition, ()), report.replicas)
        ]
        able = [server for server in able if assignment.addresses.get(server) not in assignment.drained] or able
        if not able:
            continue
        taker = min(able, key=lambda server: (load[server], server))
        before = handed.get(partition, HandedOver((), 0))
        avoids = tuple(sorted({*before.avoids, report.server_id} - {taker}))
        handed[partition] = HandedOver(avoids, before.moves + 1)
        partitions[partition] = Ownership(taker, owned.generation + 1)
        load[taker] += 1
        if report.server_id in load:  # a server that is gone is given nothing
            load[report.server_id] -= 1
    return replace(assignment, partitions=partitions, handed_over=handed)


def readmit(assignment: Assignment, steady_s: Mapping[tuple[int, int], float], calm_s: Mapping[int, float], after_s: float) -> Assignment:
    """Removes avoided servers and hand-over counts whose pause is over. `steady_s`: by partition and server, how long the server has reached a
    majority without a break; `calm_s`: by partition, how long no server has been avoided for it."""
    handed: dict[int, HandedOver] = {}
    for partition, each in assignment.handed_over.items():
        pause = pause_s(each.moves, after_s)
        avoids = tuple(server for server in each.avoids if steady_s.get((partition, server), 0.0) < pause)
        if avoids or calm_s.get(partition, 0.0) < CALM_PAUSES * pause:
            handed[partition] = HandedOver(avoids, each.moves)
    return replace(assignment, handed_over=handed)


# ---- what is published -----------------------------------------------------------------------------------------------------------------------------


def stranded_to_bytes(stranded: Mapping[int, Stranded]) -> bytes:
    return json.dumps({str(p): [each.server_id, each.generation, list(each.replicas)] for p, each in sorted(stranded.items())}).encode()


def parse_stranded(data: bytes) -> dict[int, Stranded]:
    """Raises any of `coordination.entries.UNREADABLE` for what is no report."""
    found = {}
    for partition, (server, generation, replicas) in json.loads(data).items():
        server_id, number = expect_numbers(server, generation)
        found[int(partition)] = Stranded(server_id, number, expect_texts(*replicas))
    return found


def reach_to_bytes(server_id: int, reached: Mapping[int, Sequence[str]]) -> bytes:
    return json.dumps([server_id, {str(p): list(names) for p, names in sorted(reached.items())}]).encode()


def parse_reach(data: bytes) -> tuple[int, dict[int, tuple[str, ...]]]:
    """Raises as `parse_stranded`."""
    server_id, reached = json.loads(data)
    return expect_numbers(server_id)[0], {int(p): expect_texts(*names) for p, names in reached.items()}


def merge_reach(found: Sequence[tuple[int, Mapping[int, Sequence[str]]]]) -> dict[int, dict[int, Collection[str]]]:
    """The reports of all workers of all servers as one map."""
    merged: dict[int, dict[int, Collection[str]]] = {}
    for server_id, reached in found:
        merged.setdefault(server_id, {}).update(reached)
    return merged
