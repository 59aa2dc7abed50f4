"""Creates a topic over log partitions that are empty, or that the caller names together with what happens to the data in them (decision 26).

Only the owner can say whether its partition is empty, and appends must not change that in the meantime:

1. The topic is written to the catalog as pending. From then on, owners accept no appends to its partitions.
2. Each owner returns the bound of its partition after it has read the pending entry, disconnected the clients that append, decided what they sent,
   and checked that no newer session has fenced it. A later owner reads the catalog after its session began, so the partition is closed there too.
3. The topic becomes active, with its partitions beginning above those bounds. Or it is given up, and appends continue as before.

A creation that fails in between withdraws its topic. A creation whose process dies leaves the topic pending; to repeat it or to delete the topic ends
that state, and so do the servers after a time (`server.node.pending_topics`). The activation is a compare-and-set on the entry of this creation, so a
topic that another process withdrew never becomes active.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias  # Any: keyword arguments of a topic

from waltz_log.coordination.partition_contents import PartitionContents, PartitionsAsked, is_empty
from waltz_log.coordination.topics import change_catalogue, pool_of, read_catalogue, write_catalogue
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.topics.catalogue import Catalogue, Policies, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, Unavailable, WaltzError
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["JUDGE_MAX_S", "Existing", "TopicPlan", "create_topic", "plan_topic"]

JUDGE_MAX_S: Final = 30.0
"""A creation gives up after it: half the time after which servers withdraw a pending topic, so that the command names the owner that does not answer
instead of failing because a server withdrew the topic."""

Existing: TypeAlias = Literal["keep", "discard"]
"""Whether data that partitions hold is kept or discarded: `keep`: it stays, and with it everything appended later; `discard`: retention removes it
first."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The topic to create. `log_partitions`: which ones; None: any that are empty. `existing`: what happens to data in them; None: they must be
    empty. `discards`: the number of transactions to discard, which the caller read from a dry run."""

    name: TopicName
    partitions: int
    type: str = "regular"
    keyed: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    policies: Policies = field(default_factory=Policies)
    log_partitions: tuple[int, ...] | None = None
    existing: Existing | None = None
    discards: int | None = None
    discloses: bool = True
    """Whether errors may say what other log partitions hold."""

    def __post_init__(self) -> None:
        if self.existing is not None and self.log_partitions is None:
            raise InvalidRequest(reason="partitions that hold data are used only if they are named: name them with --log-partitions")
        if self.discards is not None and self.existing != "discard":
            raise InvalidRequest(reason="a number of transactions to discard goes with --existing-data discard")

    def about(self, chosen: Sequence[int], pool: Sequence[int], now_ms: int) -> dict[str, Any]:
        """Arguments for the catalogue."""
        return {
            "type": self.type,
            "partitions": self.partitions,
            "pool": pool,
            "now_ms": now_ms,
            "keyed": self.keyed,
            "properties": self.properties,
            "policies": self.policies,
            "log_partitions": chosen,
            "keeps_existing": self.existing == "keep",
        }


async def plan_topic(
    coordinator: Coordinator, network: Network, plan: TopicPlan, *, now_ms: Callable[[], int], timeout_s: float = 10.0
) -> tuple[Topic, list[PartitionContents]]:
    """What `create_topic` would make as things are now, and what its partitions hold; no contents if the topic exists. Changes nothing. Raises
    `InvalidRequest` only for what could never be made, so that a dry run shows what is in the way."""
    asked = PartitionsAsked(coordinator, network, timeout_s)
    try:
        catalogue, pool = await read_catalogue(coordinator), await pool_of(coordinator)
        if plan.name in catalogue.topics:
            return catalogue.with_new(plan.name, **_arguments_of_retry(plan, pool, now_ms()))[1], []
        chosen = plan.log_partitions or await _empty_ones(asked, catalogue, pool, plan)
        topic = catalogue.with_new(plan.name, **plan.about(chosen, pool, now_ms()))[1]
        bounds = await asked.bounds(chosen)
        return topic, await asked.contents([bounds[each] for each in chosen if each in bounds])
    finally:
        await asked.close()


async def create_topic(coordinator: Coordinator, network: Network, plan: TopicPlan, *, now_ms: Callable[[], int], timeout_s: float = 10.0) -> Topic:
    """The topic; the one there is where it is the same. Raises `InvalidRequest` if it cannot be made so, for example because a partition holds data
    and the plan does not say whether it is kept or discarded, and `Unavailable` if an owner or the coordinator does not answer in time. Then
    nothing has changed, unless the error says that it is not known: in that case repeat the command."""
    asked = PartitionsAsked(coordinator, network, timeout_s)
    reserved: list[Topic] = []

    def reserve(found: Catalogue) -> tuple[Catalogue, Topic]:
        wanted, topic = found.reserved(plan.name, **plan.about(chosen, pool, now_ms()))
        if wanted is not found:
            reserved.append(topic)  # also of a write whose answer is lost
        return wanted, topic

    try:
        catalogue, pool = await read_catalogue(coordinator), await pool_of(coordinator)
        if plan.name in catalogue.topics:
            return catalogue.with_new(plan.name, **_arguments_of_retry(plan, pool, now_ms()))[1]
        chosen = plan.log_partitions or await _empty_ones(asked, catalogue, pool, plan)
        catalogue.with_new(plan.name, **plan.about(chosen, pool, now_ms()))  # raises before any partition is closed
        # A check without closing anything: a plan that cannot work must not stop the appends of others.
        await _judge(asked, plan, await _all_bounds(asked, chosen))
        try:
            topic, version = await write_catalogue(coordinator, reserve)
            catalogue = await read_catalogue(coordinator)
            if plan.name in catalogue.topics:  # another process created it in the meantime
                return catalogue.with_new(plan.name, **_arguments_of_retry(plan, pool, now_ms()))[1]
            bounds = await _closed_bounds(asked, plan, chosen, version)
            begins_at = [bounds[each].high_water_mark + 1 for each in chosen]
            return await change_catalogue(coordinator, lambda found: found.activated(topic, begins_at))
        except BaseException as error:
            made = await _withdraw(coordinator, plan.name, reserved, error)
            if made is not None and isinstance(error, WaltzError):
                return made
            raise
    finally:
        await asked.close()


async def _closed_bounds(asked: PartitionsAsked, plan: TopicPlan, chosen: Sequence[int], version: int) -> dict[int, pb.Bound]:
    """What the partitions hold now that they are closed to appends, if the plan keeps or discards existing data."""
    try:
        async with asyncio.timeout(JUDGE_MAX_S):
            bounds = await _all_bounds(asked, chosen, closed_in=version)
    except TimeoutError:
        raise Unavailable(reason=f"owners did not close their log partitions in {JUDGE_MAX_S:.0f} s: {', '.join(map(str, chosen))}") from None
    await _judge(asked, plan, bounds)
    return bounds


async def _withdraw(coordinator: Coordinator, name: TopicName, reserved: Sequence[Topic], cause: BaseException) -> Topic | None:
    """Leaves none of the entries pending that this creation reserved. The topic where its activation took effect and only the answer was lost."""
    if not reserved:
        return None
    made: Topic | None = None

    def withdraw(found: Catalogue) -> tuple[Catalogue, Topic]:
        nonlocal made
        there = found.topics.get(name)
        made = there if there is not None and there.epoch in {each.epoch for each in reserved} else None
        for each in reserved:
            found = found.withdrawn(each)[0]
        return found, reserved[-1]

    try:
        await change_catalogue(coordinator, withdraw)
    except WaltzError as error:
        if not isinstance(cause, WaltzError):
            raise cause from error
        raise Unavailable(
            reason=f"it is not known whether topic {name} was created: {cause}; it could not be withdrawn either: {error}. Repeat the command. If "
            "the topic is pending, its log partitions refuse appends until a server withdraws it, about a minute later"
        ) from cause
    return made


def _arguments_of_retry(plan: TopicPlan, pool: Sequence[int], now_ms: int) -> dict[str, Any]:
    return plan.about((), pool, now_ms) | {"log_partitions": plan.log_partitions}


async def _all_bounds(asked: PartitionsAsked, chosen: Sequence[int], closed_in: int | None = None) -> dict[int, pb.Bound]:
    bounds = await asked.bounds(chosen, closed_in=closed_in)
    missing = [each for each in chosen if each not in bounds]
    if missing:
        raise Unavailable(reason=f"no owner of these log partitions answers, so their contents are unknown: {', '.join(map(str, missing))}")
    return bounds


async def _empty_ones(asked: PartitionsAsked, catalogue: Catalogue, pool: Sequence[int], plan: TopicPlan) -> tuple[int, ...]:
    """The lowest free partitions that are empty. Raises `InvalidRequest` if there are too few."""
    free = catalogue.free(pool, plan.name)
    bounds = await asked.bounds(free)
    empty = [each for each in free if each in bounds and is_empty(bounds[each])]
    if len(empty) >= plan.partitions:
        return tuple(empty[: plan.partitions])
    if not plan.discloses:
        raise InvalidRequest(reason=f"the topic needs {plan.partitions} log partitions and {len(empty)} are free and empty; an operator can add some")
    full = {each: bounds[each].high_water_mark + 1 - bounds[each].first_transaction_id for each in free if each in bounds and each not in empty}
    silent = [each for each in free if each not in bounds]
    raise InvalidRequest(
        reason=f"the topic needs {plan.partitions} log partitions and {len(empty)} are free and empty"
        + (f"; these hold data: {_listed(full)}" if full else "")
        + (f"; of these no owner answers: {', '.join(map(str, silent))}" if silent else "")
        + f". `waltz cluster grow --partitions {len(pool) + plan.partitions - len(empty)}` adds empty ones"
        + ("; to use partitions that hold data, name them with --log-partitions and give --existing-data" if full else "")
    )


async def _judge(asked: PartitionsAsked, plan: TopicPlan, bounds: Mapping[int, pb.Bound]) -> None:
    """Raises `InvalidRequest` if the plan does not say whether existing data is kept or discarded."""
    full = {each: bound.high_water_mark + 1 - bound.first_transaction_id for each, bound in bounds.items() if not is_empty(bound)}
    if not full or plan.existing == "keep":
        return
    held = sum(full.values())
    if plan.existing is None:
        raise InvalidRequest(
            reason=f"log partitions hold data that no topic has: {_listed(full)}. A topic needs empty partitions; --existing-data keep leaves the "
            "data there, and retention removes nothing from these partitions; --existing-data discard removes it"
        )
    if plan.discards != held:
        said = "nothing" if plan.discards is None else str(plan.discards)
        raise InvalidRequest(
            reason=f"{held} transactions would be removed permanently, and {said} was confirmed: {_listed(full)}. Show them with --dry-run, then "
            f"confirm with --discard-transactions {held}"
        )


def _listed(full: Mapping[int, int]) -> str:
    return ", ".join(f"{partition} ({count} transactions)" for partition, count in sorted(full.items()))
