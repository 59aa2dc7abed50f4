"""`waltz topic`: lists, shows and changes the topics in the catalog."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast  # Any: JSON values, and policies that a model checks

from waltz_log.cli.partition_ranges import format_ranges, parse_ranges
from waltz_log.cli.printing import print_data, print_line, print_table
from waltz_log.cli.topics.topic_facts import partition_facts
from waltz_log.cli.watching import watched
from waltz_log.coordination.topics import change_catalogue, read_catalogue
from waltz_log.core.cluster_address import is_coordinator
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.topics.catalogue import Catalogue, Policies, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK
from waltz_log.processes.clock import WallClock
from waltz_log.storage.base.settings import StorageSettings

if TYPE_CHECKING:
    from waltz_log.client.inspection.partition_contents import PartitionContents
    from waltz_log.client.topics.topic_creation import Existing, TopicPlan

__all__ = ["alter_policy", "create", "delete", "describe", "listing"]


async def create(
    address: str,
    name: str,
    *,
    partitions: int | None,
    type: str,
    keyed: bool,
    properties: Sequence[str],
    policies: Sequence[str],
    log_partitions: str | None,
    existing: str | None,
    discards: int | None,
    dry_run: bool,
    timeout_s: float,
) -> int:
    from waltz_log.client.topics.topic_creation import create_topic, plan_topic
    from waltz_log.transport.grpc import GrpcNetwork

    plan = _plan(name, partitions, type, keyed, properties, policies, log_partitions, existing, discards)
    network, now_ms = GrpcNetwork(), WallClock().now_ms
    async with _connected(address, timeout_s) as coordinator:
        shown, contents = await plan_topic(coordinator, network, plan, now_ms=now_ms, timeout_s=timeout_s)
        if contents and (dry_run or any(each.transactions for each in contents)):
            _show_contents(shown, contents, plan.existing)
        topic = shown if dry_run else await create_topic(coordinator, network, plan, now_ms=now_ms, timeout_s=timeout_s)
    print_line(f"{'would be' if dry_run else 'is'}: {topic.name} type={topic.type} log_partitions={format_ranges(topic.partitions)}")
    return OK


def _plan(
    name: str,
    partitions: int | None,
    type: str,
    keyed: bool,
    properties: Sequence[str],
    policies: Sequence[str],
    log_partitions: str | None,
    existing: str | None,
    discards: int | None,
) -> TopicPlan:
    from waltz_log.client.topics.topic_creation import TopicPlan

    chosen = None if log_partitions is None else parse_ranges("--log-partitions", log_partitions)
    if existing not in (None, "keep", "discard"):
        raise InvalidSetting.unknown(str(existing), ("keep", "discard"), what="choice of --existing-data")
    count = partitions if partitions is not None else 16 if chosen is None else len(chosen)
    return TopicPlan(
        TopicName.parse(name),
        count,
        type,
        keyed,
        _pairs("--property", properties),
        Policies().changed(_values(policies)),
        chosen,
        cast("Existing | None", existing),
        discards,
    )


def _show_contents(topic: Topic, contents: Sequence[PartitionContents], existing: str | None) -> None:
    """What the log partitions hold, and whether it is kept or discarded."""
    fates = {
        "keep": "stays; nothing is ever removed from this partition",
        "discard": "is removed for good",
        None: "is in the way: nothing is created",
    }
    rows = [
        (
            str(each.partition),
            f"{each.transactions:,}",
            "" if not each.transactions else "not known" if each.bytes is None else f"{each.bytes:,}",
            _date(each.first_ms),
            _date(each.last_ms),
            ", ".join(each.replicas),
            str(each.last + 1),
            fates[existing] if each.transactions else "",
        )
        for each in contents
    ]
    print_table(("log partition", "transactions", "bytes", "first", "last", "replicas", f"{topic.name} begins at", "what is there"), rows)
    silent = sorted(set(topic.partitions) - {each.partition for each in contents})
    if silent:
        print_line(f"no owner of these answers, so nobody knows what they hold: {format_ranges(silent)}")
    held = sum(each.transactions for each in contents)
    if held and existing == "discard":
        print_line(f"{held} transactions would be removed for good: --discard-transactions {held} confirms that")


def _date(time_ms: int | None) -> str:
    return "" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


async def alter_policy(address: str, name: str, policies: Sequence[str], *, dry_run: bool, timeout_s: float) -> int:
    changes = _values(policies)
    if not changes:
        raise InvalidSetting(name="--policy", reason="is required: name=value", nearest=None)
    async with _connected(address, timeout_s) as coordinator:
        before = (await read_catalogue(coordinator)).find(TopicName.parse(name))
        topic = await change_catalogue(coordinator, lambda catalogue: catalogue.with_policies(before.name, changes), dry_run=dry_run)
    for policy in changes:
        print_line(
            f"{topic.name} {policy}: {getattr(before.policies, policy)} {'would become' if dry_run else 'became'} {getattr(topic.policies, policy)}"
        )
    return OK


async def delete(address: str, name: str, *, dry_run: bool, timeout_s: float) -> int:
    wanted = TopicName.parse(name)
    async with _connected(address, timeout_s) as coordinator:
        topic = await change_catalogue(coordinator, lambda catalogue: catalogue.without(wanted), dry_run=dry_run)
    freed = "are free for another topic once their owners have removed what is in them, which subscribers hold up until they have read it"
    print_line(f"{'would be' if dry_run else 'is'} deleted: {topic.name}; log partitions {format_ranges(topic.partitions)} {freed}")
    return OK


async def listing(address: str, *, output: str, timeout_s: float) -> int:
    """`address`: of log servers, which show the topics that the caller may see, or of the coordinator."""
    if is_coordinator(address):
        async with _connected(address, timeout_s) as coordinator:
            catalogue = await read_catalogue(coordinator)
    else:
        catalogue = await _seen(address, timeout_s)
    _list(catalogue, output)
    return OK


async def _seen(servers: str, timeout_s: float) -> Catalogue:
    from waltz_log.client import ClientSettings
    from waltz_log.client.owners.owners import Owners
    from waltz_log.client.owners.seeds import NamedServers
    from waltz_log.transport.grpc import GrpcNetwork

    owners = Owners(NamedServers(servers), GrpcNetwork(), ClientSettings(connect_timeout_s=timeout_s), random.Random())
    await owners.open()
    try:
        await owners.confirm(timeout_s)
        return owners.catalogue
    finally:
        await owners.close()


def _list(catalogue: Catalogue, output: str) -> None:
    """Prints active and pending topics. A pending one has no bounds yet, and its log partitions accept no appends."""
    states = [*((topic, "active") for topic in catalogue.topics.values()), *((topic, "pending") for topic in catalogue.pending.values())]
    found = sorted(states, key=lambda each: each[0].name)
    if output != "table":
        print_data([_topic_fields(topic) | {"state": state} for topic, state in found], output)
        return
    print_table(
        ("topic", "state", "type", "keyed", "partitions", "log partitions"),
        [(str(t.name), state, t.type, "yes" if t.keyed else "no", str(len(t.partitions)), format_ranges(t.partitions)) for t, state in found],
    )


async def describe(address: str, name: str, *, output: str, every_s: float | None, timeout_s: float) -> int:
    from waltz_log.transport.grpc import GrpcNetwork

    async with _connected(address, timeout_s) as coordinator:
        network = GrpcNetwork()
        return await watched(lambda: _describe(coordinator, network, address, name, output), every_s=every_s, output=output)


async def _describe(coordinator: Coordinator, network: Network, address: str, name: str, output: str) -> int:
    topic = (await read_catalogue(coordinator)).find(TopicName.parse(name))
    places = await partition_facts(coordinator, network, address, topic)
    if output != "table":
        print_data(_topic_fields(topic) | {"partitions": places}, output)
        return OK
    fields = _topic_fields(topic)
    rows = [(key, str(value)) for key, value in fields.items() if key not in ("policies", "properties", "partition_properties", "log_partitions")]
    rows += [("log partitions", format_ranges(topic.partitions))]
    rows += [(f"property {key}", value) for key, value in topic.properties.items()]
    for each in topic.partition_properties:
        rows += [(f"property {each.first}-{each.last}:{key}", value) for key, value in each.properties.items()]
    rows += [(f"policy {key}", str(value)) for key, value in fields["policies"].items()]
    print_table(("of the topic", ""), rows)
    print_table(
        ("partition", "log", "first retained", "high-water mark", "bytes", "view up to", "held by", "subscribers' lag"), [_row(e) for e in places]
    )
    return OK


def _row(place: Mapping[str, Any]) -> list[str]:
    views = {name: view["bound"] - 1 for name, view in (place["view"] or {}).items()}
    view = "" if place["view"] is None else "none" if not views else str(min(views.values()))
    lags = [f"{name}: {'not known' if each['lag_transactions'] is None else each['lag_transactions']}" for name, each in place["subscribers"].items()]
    marks = [place["first_retained"], "no owner" if place["high_water_mark"] is None else place["high_water_mark"]]
    size = "not known" if place["bytes"] is None else place["bytes"]
    return [str(each) for each in (place["partition"], place["log_partition"], *marks, size, view, place["held_by"] or "", ", ".join(lags))]


def _topic_fields(topic: Topic) -> dict[str, Any]:
    return {
        "topic": str(topic.name),
        "namespace_id": f"{topic.name.namespace_id:#018x}",
        "topic_id": f"{topic.name.topic_id:#018x}",
        "type": topic.type,
        "keyed": topic.keyed,
        "created": datetime.fromtimestamp(topic.created_ms / 1000, UTC).isoformat(),
        "log_partitions": list(topic.partitions),
        "begins_at": [topic.begin_of(each) for each in range(len(topic.partitions))],
        "existing_data": "kept" if topic.keeps_existing else "none",
        "acknowledged_means": acknowledged_means(topic.policies),
        "loss_window": loss_window(topic.policies),
        "writer_memory": writer_memory(topic),
        "properties": dict(topic.properties),
        "partition_properties": [
            {"first": each.first, "last": each.last, "properties": dict(each.properties)} for each in topic.partition_properties
        ],
        "policies": asdict(topic.policies),
    }


def acknowledged_means(policies: Policies) -> str:
    if policies.durability == "quorum_sync":
        return "on the disks of a majority of the replicas"
    return "in the memory of a majority of the replicas, and soon after on their disks"


def loss_window(policies: Policies) -> str:
    if policies.durability == "quorum_sync":
        return "none"
    return f"the last {policies.flush_period_ms} ms or {policies.flush_bytes} bytes, where the owner and machines of a majority die together"


def writer_memory(topic: Topic) -> str:
    """The largest part of a partition's appends that a storage node keeps in memory by default."""
    fields = StorageSettings.model_fields
    own, all_of_them, keys = (fields[name].default >> 20 for name in ("pending_bytes_max", "writer_bytes_max", "compaction_key_cache_bytes"))
    bound = f"{own} MiB and one block for each partition on a storage node, {all_of_them} MiB for all of a node"
    return bound if topic.type == "regular" else f"{bound}; while it is compacted {own} MiB more and {keys} MiB of keys"


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals) or name in found:
            raise InvalidSetting(name=option, reason=f"wants name=value, each name once, got {text!r}", nearest=None)
        found[name] = value
    return found


def _values(policies: Sequence[str]) -> dict[str, Any]:
    """Policies with whole numbers and truths as such; `core.topics.catalogue` says what is wrong with them."""
    found: dict[str, Any] = {}
    for name, text in _pairs("--policy", policies).items():
        if text in ("true", "false"):
            found[name] = text == "true"
        elif text.removeprefix("-").isdecimal():
            found[name] = int(text)
        else:
            found[name] = text
    return found


@asynccontextmanager
async def _connected(address: str, timeout_s: float) -> AsyncIterator[Coordinator]:
    from waltz_log.coordination.coordinator import ZooKeeperCoordinator

    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s)
    try:
        yield coordinator
    finally:
        await coordinator.close()
