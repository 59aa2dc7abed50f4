"""Attacks on outcomes: another client's id, its pending appends, and records whose checksums are wrong. Each returns what was
refused, and the breaches that it achieved."""

from __future__ import annotations

import asyncio

from verification.hostile.target import WAIT_S, Hostile, Outcome
from waltz_log.core.formats.records import encode_record
from waltz_log.errors import WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import MOUNT, RESOLVE

__all__ = ["append_wrong_checksums", "cancelling", "fence_the_victim", "mount_as_the_victim", "resolve_for_the_victim"]

NEWEST_MOUNT = 1 << 61
"""A mount sequence above every one that an honest client uses: it would fence the client for good."""

FORGED = 8


async def mount_as_the_victim(hostile: Hostile) -> Outcome:
    """Mounts under the victim's id, and appends records with sequences that the victim uses next."""
    partition = hostile.rng.choice(hostile.target.shared)
    client_id = hostile.rng.choice([each for each in (hostile.target.victim, hostile.target.victim, 1, 2, 3, 4) if not hostile.owns(each)])
    first = hostile.rng.choice((0, 1, 1000, 100_000))
    bodies = [b"forged %d" % number for number in range(FORGED)]
    outcome = Outcome()
    mounted, committed = await _append(hostile, outcome, partition, client_id, bodies, first, ticket=hostile.wrong_ticket())
    if committed:
        outcome.breaches.append(f"appended under the id of client {client_id}: partition={partition} transactions={committed}")
    elif mounted:
        outcome.breaches.append(f"mounted under the id of client {client_id}: partition={partition}")
    return outcome


async def fence_the_victim(hostile: Hostile) -> Outcome:
    """Mounts without appending, as a process does that continues what another one left."""
    partition, outcome = hostile.rng.choice(hostile.target.shared), Outcome()
    mount = hostile.mounting(partition, hostile.target.victim, NEWEST_MOUNT, appends_nothing=True, ticket=hostile.wrong_ticket())
    stream = hostile.server().open(MOUNT)
    try:
        async with asyncio.timeout(WAIT_S):
            await stream.send(mount)
            if await stream.receive() is not None:
                outcome.breaches.append(f"fenced client {hostile.target.victim}: partition={partition}")
    except (WaltzError, TimeoutError) as error:
        outcome.refused_with(error)
    finally:
        await stream.cancel()
    return outcome


async def resolve_for_the_victim(hostile: Hostile) -> Outcome:
    """A frame whose closing checksums are wrong so that a checksum of the whole frame does not change, under the hostile client's own id."""
    partition, victim, outcome = hostile.rng.choice(hostile.target.shared), hostile.target.victim, Outcome()
    request = pb.ResolveRequest(
        partition=partition, client_id=victim, first_sequence=0, last_sequence=1 << 30, since=-1, cluster_key=hostile.key, search_ms=100
    )
    request.ticket = hostile.wrong_ticket()
    await hostile.expect_refused(outcome, RESOLVE, request, f"resolved the appends of client {victim}: partition={partition}")
    return outcome


async def append_wrong_checksums(hostile: Hostile) -> Outcome:
    """A frame whose closing checksums are wrong so that a checksum of the whole frame does not change, under the hostile client's own id. It achieves
    something only if the frame is judged, which needs a mount."""
    partition, judged = hostile.rng.choice(hostile.target.shared), Outcome()
    bodies = [b"cancels %d" % (number % 10) for number in range(128)]
    first = hostile.next_sequences(len(bodies))
    mounted, committed = await _append(hostile, judged, partition, hostile.own_id, bodies, first, ticket=hostile.own_ticket, wrong=True)
    return Outcome(judged.achieved if mounted else 0, [f"appended records with wrong checksums: partition={partition}"] if committed else [])


async def _append(
    hostile: Hostile, outcome: Outcome, partition: int, client_id: int, bodies: list[bytes], first: int, *, ticket: str, wrong: bool = False
) -> tuple[bool, int]:
    """Whether the mount was accepted, and how many transactions were committed. `outcome` counts a refusal of either."""
    stream, mounted = hostile.server().open(MOUNT), False
    try:
        async with asyncio.timeout(WAIT_S):
            await stream.send(hostile.mounting(partition, client_id, hostile.next_mount_sequence(), ticket=ticket))
            answer = await stream.receive()
            if answer is None or not answer.HasField("mounted"):
                return False, 0
            mounted = True
            frame = hostile.frame(answer.mounted.generation, partition, client_id, first, bodies)
            if wrong:
                frame.records = cancelling(frame.records, len(encode_record(0, 0, 0, 0, 0, bodies[0])))
            await stream.send(pb.ClientMessage(append=frame))
            while (answer := await stream.receive()) is not None:
                if answer.HasField("result"):
                    found = answer.result.committed
                    return True, sum(int.from_bytes(found[at + 8 : at + 16], "big") for at in range(0, len(found), 24))
    except (WaltzError, TimeoutError) as error:
        outcome.refused_with(error)
    finally:
        await stream.cancel()
    return mounted, 0


def cancelling(records: bytes, length: int) -> bytes:
    """The records, of one length each, with the closing checksums of the first two wrong by amounts that cancel each other in a CRC over both."""
    found = bytearray(records)
    error = 0x00C0FFEE
    for at, wrong in ((length - 4, error), (2 * length - 4, _after_zeros(error, length))):
        found[at : at + 4] = (int.from_bytes(found[at : at + 4], "big") ^ wrong).to_bytes(4, "big")
    return bytes(found)


def _after_zeros(register: int, count: int) -> int:
    """What a difference of the register becomes when this number of bytes follows: the same for all bytes, as CRC-32 is linear."""
    for _ in range(8 * count):
        register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
    return register
