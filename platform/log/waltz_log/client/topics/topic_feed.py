"""The feeds of several partitions as one: each in its own order, none waiting for another, nothing read ahead but one batch of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any  # Future is invariant

from waltz_log.background_tasks import start_task
from waltz_log.client.topics.topic_directory import KnownTopic
from waltz_log.client.topics.topic_records import TopicFeed, TopicRecord

__all__ = ["merged"]


async def merged(known: KnownTopic, feeds: Sequence[TopicFeed]) -> TopicFeed:
    """Batches of all feeds as they come, until one of them raises or all have ended; `TopicDeleted` once the topic is. Closes the feeds."""
    deleted = start_task(known.deleted.wait())
    pending: dict[asyncio.Future[list[TopicRecord] | None], TopicFeed] = {}
    try:
        for feed in feeds:
            pending[start_task(_next(feed))] = feed
        while pending:
            either: list[asyncio.Future[Any]] = [*pending, deleted]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in pending if task.done()]:  # in one order always
                feed = pending.pop(task)
                batch = task.result()
                if batch is None:
                    continue
                yield batch
                pending[start_task(_next(feed))] = feed
            known.expect_there()
    finally:
        deleted.cancel()
        for task in pending:
            task.cancel()
        await asyncio.gather(deleted, *pending, return_exceptions=True)
        for feed in feeds:
            await feed.aclose()


async def _next(feed: TopicFeed) -> list[TopicRecord] | None:
    """None: it has ended."""
    return await anext(feed, None)
