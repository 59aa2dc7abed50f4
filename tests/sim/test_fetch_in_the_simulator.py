"""Under faults: what is fetched by id is what the log holds under that id."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from verification.simulation.clients import CLIENT_KINDS, Actor, ClientKind
from verification.simulation.run import run
from waltz_log.errors import OutOfRange, Unavailable

SEEDS = range(16)


def test_transactions_fetched_by_id_are_those_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of producers that also read headers, and the data of some: the checkers compare what they saw with what all others did."""
    fetched: Counter[str] = Counter()
    produce = CLIENT_KINDS["producer"].run

    async def read_headers_and_fetch(actor: Actor) -> None:
        client = await actor.connect()
        stream = actor.stream()
        after = -1
        while not actor.over.is_set():
            try:
                async with asyncio.timeout(1):
                    headers = await anext(client.feed_batches(actor.partition, after, data=False))
                ids = [each.transaction_id for each in headers]
                shuffled = [*actor.rng.sample(ids, len(ids)), ids[0]]
                found = await client.fetch(actor.partition, shuffled, timeout_s=2.0)
            except (TimeoutError, Unavailable, OutOfRange) as error:
                fetched[type(error).__name__] += 1
                continue
            assert [each.transaction_id for each in found] == shuffled
            whole = sorted(found[:-1])
            # A crash may lose the time of the newest blocks back to that of an earlier one, so times are not compared here.
            assert [each._replace(data=b"", timestamp_ms=0) for each in whole] == [each._replace(timestamp_ms=0) for each in headers]
            actor.saw(stream, after, whole)
            fetched["transactions"] += len(whole)
            after = ids[-1]
            await actor.pause(0.1)
        await client.close()

    async def both(actor: Actor) -> None:
        reading = asyncio.ensure_future(read_headers_and_fetch(actor))
        try:
            await produce(actor)
            await asyncio.sleep(0.5)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            actor.world.history.complaints.append(f"9: fetching ended with {error!r}: client={actor.name}")

    monkeypatch.setitem(CLIENT_KINDS, "producer", ClientKind(both))
    for seed in SEEDS:
        outcome = run(seed)
        assert outcome.wrong == [], outcome.command
    assert fetched["transactions"] > 100
    assert fetched["OutOfRange"] == 0, "what a feed gave is in the log"
