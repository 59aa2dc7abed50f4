"""The configuration of a seed: sizes, network conditions, clients and faults, each drawn separately, so that every seed tests another combination
(swarm testing, Groce et al., ISSTA 2012). Settings are drawn below the limits for operators, so that a short run reaches states that otherwise need a
long one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from verification.simulation.kept_mix import KeptTopic, draw_kept
from waltz_log.core.topics.catalogue import Policies
from waltz_log.server.base.settings import QuotaSettings
from waltz_log.testing.links import Weather

__all__ = [
    "ACCESS_IN",
    "BATCHES",
    "BATCHES_IN",
    "CLOCKS_ALONE",
    "CONTEXTS",
    "CONTEXTS_FROM",
    "CUT_OFF_IN",
    "GROWTH",
    "QUOTAS_IN",
    "STRANDED_ALONE",
    "Mix",
    "draw",
]

CONTEXTS: Final = "contexts"
"""The kind of client that is not drawn like the others, so that lower seeds stay unchanged."""

BATCHES: Final = "batches"
"""The same: the clients that append in bulk."""

GROWTH: Final = "replica-growth"
"""The fault that is not drawn: it needs partitions that begin with one replica, which few seeds have."""

CONTEXTS_FROM: Final = 200_000
"""From this seed on every run has such clients beside those it draws."""


BATCHES_IN: Final = range(300_000, 400_000)
"""In these seeds every run has clients that append in bulk."""

CLOCKS_ALONE: Final = range(400_000, 401_000)
"""In these seeds only clocks and owners fail, so that no append time is lost and all of them are compared."""

QUOTAS_IN: Final = range(500_000, 501_000)
"""In these seeds all clients are one principal with a small quota."""

STRANDED_ALONE: Final = range(401_000, 402_000)
"""In these seeds the only fault is stranded servers. It shows whether a deposed owner answers from outdated knowledge."""

ACCESS_IN: Final = range(700_000, 800_000)
"""In these seeds the rules of access are enforced, and every run has a client that no rule permits anything."""

CUT_OFF_IN: Final = range(800_000, 900_000)
"""In these seeds all servers but one lose the coordinator, as often as all other faults together happen."""

SERVERS_CUT_OFF: Final = "servers-cut-off"
"""The fault of those seeds."""

INTRUDERS: Final = "intruder"
IMPOSTORS: Final = "impostor"
PARTNERS: Final = "partner"
"""The kinds of clients that those seeds have besides others."""

IN_MEMORY = 0.3
"""Of the partitions."""


@dataclass(frozen=True, slots=True)
class Mix:
    partitions: int
    storages: int
    replicas: int
    servers: int
    server_settings: Mapping[str, object]
    segment_bytes: int
    session_timeout_s: float
    disk_s: float
    coordinator_s: float
    answers_lost: float
    """The share of the coordinator's changes that are made but not answered."""
    weather: Weather
    clients: Sequence[str]
    operations: int
    """Of each client."""
    faults: Mapping[str, float]
    nemeses: int
    fault_pause_s: float
    load_s: float
    """How long faults go on."""
    in_memory: Mapping[int, Policies] = field(default_factory=dict)
    """Partitions whose topic is acknowledged from memory."""
    follower_lag_s: float = 0.0
    """The maximum lag of the coordinator's followers, from which sessions read; 0: no session reads from a follower."""
    kept: Mapping[int, KeptTopic] = field(default_factory=dict)
    """More partitions, whose topics are trimmed and compacted all the time; they have clients of their own."""

    access: bool = False
    """Whether the rules of access are enforced."""
    quota: QuotaSettings | None = None
    """Of each principal and topic at each server."""

    @property
    def log_partitions(self) -> int:
        """All there are."""
        return self.partitions + len(self.kept)

    def describe(self) -> str:
        return (
            f"partitions={self.partitions} storages={self.storages} replicas={self.replicas} servers={self.servers} clients={','.join(self.clients)} "
            f"operations={self.operations} loss={self.weather.loss:.2f} duplication={self.weather.duplication:.2f} linger={self.weather.linger:.2f} "
            f"faults={','.join(self.faults) or 'none'} nemeses={self.nemeses}"
            + (f" followers={self.follower_lag_s:g}s" if self.follower_lag_s else "")
            + (" access" if self.access else "")
            + "".join(f" {topic.type}-{each}" for each, topic in self.kept.items())
            + "".join(f" memory-{each}={policies.flush_period_ms}ms/{policies.flush_bytes}" for each, policies in self.in_memory.items())
        )


def draw(seed: int, clients: Sequence[str], faults: Sequence[str], chances: Mapping[str, float] | None = None) -> Mix:
    """`clients`, `faults`: the kinds there are. `chances`: of the faults that are drawn by themselves and change nothing else of the seed."""
    rng = Random(f"mix {seed}")
    memory = Random(f"memory {seed}")

    def sometimes(chance: float, value: float) -> float:
        return rng.uniform(0, value) if rng.random() < chance else 0.0

    replicas = rng.choice((1, 2, 3, 3, 3, 3, 3, 3, 5))
    drawn = [kind for kind in clients if kind not in (CONTEXTS, BATCHES, INTRUDERS, IMPOSTORS, PARTNERS)]
    kinds_there = [kind for kind in faults if kind != GROWTH]
    kinds = rng.sample(kinds_there, rng.randint(0, len(kinds_there)) if rng.random() < 0.9 else 0)
    fast = rng.choice((0.001, 0.003, 0.01))
    partitions = rng.choice((1, 1, 1, 2, 3))
    mix = Mix(
        partitions=partitions,
        storages=max(replicas, rng.choice((replicas, replicas, 4))),
        replicas=replicas,
        servers=rng.choice((1, 2, 2, 2, 3)),
        server_settings={
            "blocks_in_flight": rng.choice((1, 2, 2, 2, 4, 8)),
            "block_bytes_max": rng.choice((512, 4096, 1 << 20)),
            "transaction_cache_bytes": (cache_bytes := rng.choice((256, 4096, 1 << 20))),
            "feed_cache_bytes": cache_bytes,
            "fetches_max": 2,
            "feed_bytes_max": rng.choice((256, 4096, 1 << 20)),
            "lock_entries_max": rng.choice((4, 16, 1000, 1_000_000)),
            "replica_bytes_in_flight": rng.choice((1024, 1 << 22)),
            "upkeep_s": 0.15,
            "replica_retry_s": 0.02,
            "replica_retry_max_s": rng.choice((0.1, 0.5)),
            "rpc_timeout_s": rng.choice((0.5, 2.0)),
            "mount_wait_s": rng.choice((0.2, 1.0)),
            "memory_wait_s": 0.5,
            "hand_over_after_s": Random(f"hand over {seed}").choice((0.4, 1.0)),
            "overlap_bytes": Random(f"overlap {seed}").choice((0, 0, 0, 256, 1 << 17)),
        },
        segment_bytes=rng.choice((4096, 4096, 16384, 1 << 20)),
        session_timeout_s=rng.choice((0.3, 1.0)),
        disk_s=rng.choice((0.0, 0.001, 0.005)),
        coordinator_s=rng.choice((0.0, 0.005)),
        answers_lost=sometimes(0.3, 0.1),
        weather=Weather(
            delay_s=(0.0, fast),
            loss=sometimes(0.4, 0.3),
            duplication=sometimes(0.4, 0.5),
            duplicate_late_s=rng.choice((0.01, 0.5)),
            patience_s=rng.choice((0.3, 1.0, 2.0)),
            linger=rng.choice((0.0, 0.5, 1.0)),
        ),
        clients=[rng.choice(drawn) for _ in range(rng.randint(2, 4))] + _contexts(seed) + _batches(seed) + _intruders(seed),
        operations=rng.choice((20, 40, 60)),
        faults=_faults(seed, {kind: rng.uniform(0.1, 1.0) for kind in kinds}, chances or {}),
        nemeses=rng.choice((1, 1, 2, 3)),
        fault_pause_s=rng.choice((0.05, 0.3, 0.8)),
        load_s=rng.choice((1.0, 3.0, 5.0)),
        follower_lag_s=Random(f"followers {seed}").choice((0.0, 0.05, 0.5)),
        kept=draw_kept(seed, partitions),
        access=seed in ACCESS_IN,
        in_memory={each: _from_memory(memory) for each in range(partitions) if memory.random() < IN_MEMORY},
    )
    if seed in QUOTAS_IN:
        return _with_quota(mix, Random(f"quota {seed}"))
    if seed in CUT_OFF_IN:
        return replace(mix, servers=3, faults={**mix.faults, SERVERS_CUT_OFF: max(1.0, sum(mix.faults.values()))})
    return _stranded_alone(mix) if seed in STRANDED_ALONE else mix


def _with_quota(mix: Mix, rng: Random) -> Mix:
    """All clients are one principal, which has a fraction of what they would append."""
    quota = QuotaSettings(
        transactions_per_s=rng.choice((20, 50, 100)),
        burst_s=rng.choice((0.1, 0.5, 2.0)),
        mounts_per_s=rng.choice((None, 20)),
        bytes_per_s=rng.choice((None, 1_000, 3_000)),
    )
    return replace(mix, server_settings={**mix.server_settings, "quotas": (quota,)}, quota=quota)


def _stranded_alone(mix: Mix) -> Mix:
    return replace(
        mix,
        partitions=1,
        replicas=3,
        storages=3,
        servers=2,
        session_timeout_s=0.3,
        faults={"stranded": 1.0},
        nemeses=1,
        load_s=5.0,
        kept={},
        in_memory={},
    )


def _faults(seed: int, drawn: Mapping[str, float], chances: Mapping[str, float]) -> dict[str, float]:
    if seed in CLOCKS_ALONE:
        return {"clock": 1.0, "clock-drift": 1.0, "server-kill": 1.0}
    return {**drawn, **_by_themselves(seed, chances)} if drawn else {}


def _by_themselves(seed: int, chances: Mapping[str, float]) -> dict[str, float]:
    """The weight of each fault that the seed has."""
    found: dict[str, float] = {}
    for kind, chance in sorted(chances.items()):
        rng = Random(f"fault {kind} {seed}")
        if rng.random() < chance:
            found[kind] = rng.uniform(0.5, 2.0)
    return found


def _contexts(seed: int) -> list[str]:
    return [CONTEXTS] * Random(f"contexts {seed}").choice((1, 1, 2)) if seed >= CONTEXTS_FROM else []


def _batches(seed: int) -> list[str]:
    return [BATCHES] * Random(f"batches {seed}").choice((1, 2)) if seed in BATCHES_IN else []


def _intruders(seed: int) -> list[str]:
    return [INTRUDERS, IMPOSTORS, PARTNERS] if seed in ACCESS_IN else []


def _from_memory(rng: Random) -> Policies:
    return Policies(durability="quorum_memory", flush_period_ms=rng.choice((2, 50, 300, 300)), flush_bytes=rng.choice((1, 2000, 1 << 20, 1 << 20)))
