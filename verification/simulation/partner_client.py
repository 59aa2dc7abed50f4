"""A client with a right on one topic. It follows the cluster at one server after the other, from everything or from what it knows, and must not learn
the name of any other topic. It runs only if access rules are enforced (`mix.ACCESS_IN`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from verification.simulation.clients import Actor, client_kind
from verification.simulation.identities import PARTNER, PARTNER_TOPIC
from verification.simulation.intruder_client import servers_of
from waltz_log.client.owners.following import stated_versions
from waltz_log.core.cluster_map import TOPICS_SOURCE, ClusterMap, MapPart
from waltz_log.errors import WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import FOLLOW

__all__ = ["PARTNER", "follow_with_one_right"]


@client_kind(PARTNER)
async def follow_with_one_right(actor: Actor) -> None:
    """Until the load is over."""
    map = ClusterMap()
    while not actor.over.is_set():
        await actor.pause(0.05)
        servers = servers_of(actor.world)
        if not servers:
            continue
        if actor.rng.random() < 0.3:
            map = ClusterMap()
        request = pb.FollowRequest(
            cluster_key=actor.world.key.bytes,
            epoch=max(0, map.epoch),
            versions=stated_versions(map),
        )
        stream = actor.process.host.connect(actor.rng.choice(servers)).read(FOLLOW, request)
        try:
            async with asyncio.timeout(actor.rng.choice((0.05, 0.5, 2.0))):
                while (message := await stream.receive()) is not None:
                    _check(actor, message)
                    parts = [MapPart(p.source, p.base, p.version, {i.name: i.value for i in p.items}, tuple(p.removed)) for p in message.parts]
                    map.apply(message.epoch, parts)
        except TimeoutError:
            pass
        except WaltzError:
            map = ClusterMap()
        finally:
            await stream.cancel()


def _check(actor: Actor, message: Any) -> None:
    for part in message.parts:
        names = {item.name for item in part.items} | set(part.removed) if part.source == TOPICS_SOURCE else set()
        if names - {PARTNER_TOPIC}:
            shown = ", ".join(sorted(names - {PARTNER_TOPIC}))
            actor.world.history.complaints.append(f"36: a topic is shown to a principal without a right on it: {shown}")
