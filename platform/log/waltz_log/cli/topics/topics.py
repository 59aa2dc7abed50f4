"""`waltz topic`: lists, shows and changes the topics in the catalog."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final  # Any: JSON values

from waltz_log.cli.connecting import reached
from waltz_log.cli.partition_ranges import format_ranges, parse_ranges
from waltz_log.cli.printing import print_data, print_line, print_result, print_table
from waltz_log.cli.topics.misuse import misuses
from waltz_log.cli.topics.topic_facts import partition_facts
from waltz_log.cli.watching import watched
from waltz_log.client.owners.owners import Owners
from waltz_log.client.topics.topic_directory import find_topic
from waltz_log.core.topics.catalogue import Catalogue, Policies, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK
from waltz_log.storage.base.settings import StorageSettings
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import TOPICS

__all__ = ["alter_policy", "create", "default_partitions", "delete", "describe", "listing"]

CONFIRM_S: Final = 3.0
"""For the servers to confirm a topic with the coordinator. While it is away, the map says what the topic is."""


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
    output: str,
    timeout_s: float,
) -> int:
    chosen = None if log_partitions is None else parse_ranges("--log-partitions", log_partitions)
    if existing not in (None, "keep", "discard"):
        raise InvalidSetting.unknown(str(existing), ("keep", "discard"), what="choice of --existing-data")
    topic_name = TopicName.parse(name)
    texts = _pairs("--policy", policies)
    plan = pb.TopicPlan(type=type, keyed=keyed, properties=_pairs("--property", properties), existing=existing or "")
    try:
        plan.partitions, plan.discards = partitions or len(chosen or ()), 0 if discards is None else discards + 1
        plan.log_partitions.extend(chosen or ())
    except ValueError:
        raise InvalidSetting(name="--partitions", reason="is more than a log can have", nearest=None) from None
    request = pb.TopicsRequest(action=pb.TopicsRequest.ACTION_CREATE, topic=str(topic_name), policies=texts, plan=plan, dry_run=True)
    async with reached(address, timeout_s) as owners:
        reason = None
        if not request.plan.partitions:
            request.plan.partitions, reason = default_partitions(owners.catalogue, topic_name, owners.parameters.partitions)
        answer = await _asked(owners, request, timeout_s)
        contents = list(answer.contents)
        if output == "table" and contents and (dry_run or any(each.last >= each.first for each in contents)):
            _show_contents(_topic(answer.topics[0]), contents, existing)
        if not dry_run:
            request.dry_run = False
            answer = await _asked(owners, request, timeout_s)
    topic = _topic(answer.topics[0])
    line = f"{'Would create' if dry_run else 'Created'} {topic.name}: type={topic.type} log_partitions={format_ranges(topic.partitions)}"
    held = [{"log_partition": each.partition, "transactions": each.last + 1 - each.first} for each in contents]
    chose = [] if reason is None else [f"partitions={len(topic.partitions)}: {reason}; --partitions sets another number, which cannot change later"]
    print_result(_topic_fields(topic) | {"dry_run": dry_run, "contents": held}, [line, *chose], output)
    return OK


def default_partitions(catalogue: Catalogue, name: TopicName, log_partitions: int) -> tuple[int, str]:
    """The number of partitions of a topic for which none is given, and the reason: half of the log partitions that are free, so that other topics
    find some too. Of a topic that exists, as many as it has: to create it again changes nothing. Topics that this principal does not see are
    not known here; if too few partitions are left, the servers say so."""
    there = catalogue.topics.get(name)
    if there is not None:
        return len(there.partitions), "as the topic has, which exists"
    free = log_partitions - sum(len(each.partitions) for each in catalogue.topics.values())
    return max(1, free // 2), f"half of the {max(0, free)} log partitions that no topic uses"


async def _asked(owners: Owners, request: pb.TopicsRequest, timeout_s: float) -> pb.TopicsResponse:
    request.cluster_key = owners.parameters.key.bytes
    return await owners.call_any(TOPICS, request, timeout_s=timeout_s)


def _show_contents(topic: Topic, contents: Sequence[pb.PartitionContents], existing: str | None) -> None:
    """What the log partitions hold, and whether it is kept or discarded."""
    fates = {
        "keep": "is kept; nothing is ever removed from this partition",
        "discard": "is removed permanently",
        None: "prevents the creation",
    }
    counts = {each.partition: each.last + 1 - each.first for each in contents}
    rows = [
        (
            str(each.partition),
            f"{(count := counts[each.partition]):,}",
            "" if not count else "not known" if each.bytes < 0 else f"{each.bytes:,}",
            _date(each.first_ms),
            _date(each.last_ms),
            ", ".join(each.replicas),
            str(each.last + 1),
            fates[existing] if count else "",
        )
        for each in contents
    ]
    print_table(("log partition", "transactions", "bytes", "first", "last", "replicas", f"{topic.name} begins at", "its data"), rows)
    silent = sorted(set(topic.partitions) - counts.keys())
    if silent:
        print_line(f"contents unknown, because no owner of these answers: {format_ranges(silent)}")
    held = sum(counts.values())
    if held and existing == "discard":
        print_line(f"{held} transactions would be removed permanently: confirm with --discard-transactions {held}")


def _date(time_ms: int) -> str:
    return "" if time_ms < 0 else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


async def alter_policy(address: str, name: str, policies: Sequence[str], *, dry_run: bool, output: str, timeout_s: float) -> int:
    changes = _pairs("--policy", policies)
    if not changes:
        raise InvalidSetting(name="--policy", reason="is required: name=value", nearest=None)
    request = pb.TopicsRequest(action=pb.TopicsRequest.ACTION_ALTER, topic=str(TopicName.parse(name)), policies=changes, dry_run=dry_run)
    async with reached(address, timeout_s) as owners:
        answer = await _asked(owners, request, timeout_s)
        before, topic = _topic(answer.before), _topic(answer.topics[0])
        warnings = misuses(topic, await partition_facts(owners, topic, timeout_s)) if topic.type == "compaction" else []
    changed = {policy: {"from": getattr(before.policies, policy), "to": getattr(topic.policies, policy)} for policy in changes}
    change = "Would set" if dry_run else "Set"
    lines = [f"{change} {policy} of {topic.name}: {each['to']}, before {each['from']}" for policy, each in changed.items()]
    print_result({"topic": str(topic.name), "dry_run": dry_run, "policies": changed, "warnings": warnings}, lines, output)
    if output == "table":
        _warn(warnings)
    return OK


async def delete(address: str, name: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    request = pb.TopicsRequest(action=pb.TopicsRequest.ACTION_DELETE, topic=str(TopicName.parse(name)), dry_run=dry_run)
    async with reached(address, timeout_s) as owners:
        topic = _topic((await _asked(owners, request, timeout_s)).topics[0])
    freed = "are free for another topic after the subscribers have read the data and the owners have removed it"
    line = f"{'Would delete' if dry_run else 'Deleted'} {topic.name}: log partitions {format_ranges(topic.partitions)} {freed}"
    print_result({"topic": str(topic.name), "dry_run": dry_run, "deleted": not dry_run, "log_partitions": list(topic.partitions)}, [line], output)
    return OK


async def listing(address: str, *, output: str, timeout_s: float) -> int:
    async with reached(address, timeout_s) as owners:
        answer = await _asked(owners, pb.TopicsRequest(action=pb.TopicsRequest.ACTION_LIST), timeout_s)
    _list([(_topic(each), "pending" if each.pending else "active") for each in answer.topics], output)
    return OK


def _topic(state: pb.TopicState) -> Topic:
    (topic,) = Catalogue.of_rows([json.loads(state.row)]).topics.values()
    return topic


def _list(states: Sequence[tuple[Topic, str]], output: str) -> None:
    """Prints active and pending topics. A pending one has no bounds yet, and its log partitions accept no appends."""
    found = sorted(states, key=lambda each: each[0].name)
    if output != "table":
        print_data([_topic_fields(topic) | {"state": state} for topic, state in found], output)
        return
    print_table(
        ("topic", "state", "type", "keyed", "partitions", "log partitions"),
        [(str(t.name), state, t.type, "yes" if t.keyed else "no", str(len(t.partitions)), format_ranges(t.partitions)) for t, state in found],
    )


async def describe(address: str, name: str, *, output: str, every_s: float | None, timeout_s: float) -> int:
    async with reached(address, timeout_s) as owners:
        return await watched(lambda: _describe(owners, name, output, timeout_s), every_s=every_s, output=output)


async def _describe(owners: Owners, name: str, output: str, timeout_s: float) -> int:
    topic = await find_topic(owners, TopicName.parse(name), min(timeout_s, CONFIRM_S))
    places = await partition_facts(owners, topic, timeout_s)
    warnings = misuses(topic, places)
    if output != "table":
        print_data(_topic_fields(topic) | {"partitions": places, "warnings": warnings}, output)
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
    _warn(warnings)
    return OK


def _warn(warnings: Sequence[str]) -> None:
    for each in warnings:
        print_line(f"waltz: {each}", file=sys.stderr)


def _row(place: Mapping[str, Any]) -> list[str]:
    views = {name: view["bound"] - 1 for name, view in (place["view"] or {}).items()}
    view = "" if place["view"] is None else "none" if not views else str(min(views.values()))
    found = place["subscribers"]
    lags = "not known" if found is None else ", ".join(f"{name}: {_known(each['lag_transactions'])}" for name, each in found.items())
    first = "no owner" if place["first_retained"] is None else place["first_retained"]
    marks = [first, "no owner" if place["high_water_mark"] is None else place["high_water_mark"]]
    return [str(each) for each in (place["partition"], place["log_partition"], *marks, _known(place["bytes"]), view, place["held_by"] or "", lags)]


def _known(value: int | None) -> int | str:
    return "not known" if value is None else value


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
            raise InvalidSetting(name=option, reason=f"must be name=value, with each name once, got {text!r}", nearest=None)
        found[name] = value
    return found
