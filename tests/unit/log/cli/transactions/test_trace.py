"""`waltz trace` against a cluster in memory: what it says of a transaction is what the client, the log and the replicas know of it."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import AsyncIterator, Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from waltz_log.cli.main import run
from waltz_log.cli.transactions import trace as command
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.client.inspection import transaction_trace
from waltz_log.client.inspection.transaction_trace import HoldingReplica, TableVersion, TransactionTrace
from waltz_log.client.owners.owners import Owners
from waltz_log.errors import InvalidRequest, InvalidSetting, NotAllowed, NotCommittedYet, OutOfRange, Trimmed, Unavailable, WaltzError
from waltz_log.exit_codes import UNAVAILABLE, USAGE
from waltz_log.testing import InMemoryCluster
from waltz_log.transport import waltz_pb2 as pb

ROOT = Path(__file__).resolve().parents[5]
FRAMING = 40


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=2, storages=3, servers=1) as made:
        yield made


async def traced(cluster: InMemoryCluster, partition: int, transaction_id: int, **options: Any) -> TransactionTrace:
    owners = Owners(cluster.seeds, cluster.network, ClientSettings(), random.Random(0))
    await owners.open()
    try:
        return await transaction_trace.trace(owners, partition, transaction_id, **options)
    finally:
        await owners.close()


async def append(client: WaltzClient, *data: bytes) -> None:
    """As one block, or a few."""
    for pending in [await client.append_nowait(0, each, number) for number, each in enumerate(data)]:
        await pending


async def test_a_trace_names_sender_time_session_block_and_replicas(cluster: InMemoryCluster) -> None:
    first, second = await cluster.client(), await cluster.client()
    await append(first, b"a", b"bb")
    await append(second, b"ccc")
    receipt = await first.append(0, b"dddd", 77)
    fed = {}
    async for each in first.feed(0, -1):
        fed[each.transaction_id] = each
        if each.transaction_id == receipt.transaction_id:
            break
    for transaction_id, client in ((0, first), (1, first), (2, second), (3, first)):
        found = await traced(cluster, 0, transaction_id)
        assert found.client_id == client.client_id
        assert found.append_time_ms == fed[transaction_id].timestamp_ms
        assert found.header == fed[transaction_id].header
        same = [at for at, each in fed.items() if each.timestamp_ms == found.append_time_ms]
        sizes = {at: FRAMING + len(each.data) for at, each in fed.items()}
        assert (found.block.first_transaction_id, found.block.last_transaction_id) == (min(same), max(same))
        assert found.block.offset == sum(sizes[at] for at in same if at < transaction_id)
        assert found.block.bytes == sum(sizes[at] for at in same)
        assert found.block.record_bytes == sizes[transaction_id]
        assert found.session == found.owner_session
        assert found.replicas == tuple(HoldingReplica(f"storage-{number}", True, None) for number in range(3))
    assert (await traced(cluster, 0, 3)).sequence > (await traced(cluster, 0, 1)).sequence, "appends of one client count up"


async def test_a_transaction_of_an_older_session_is_known_to_be_older(cluster: InMemoryCluster) -> None:
    client = await cluster.client()
    await append(client, b"before")
    older = await traced(cluster, 0, 0)
    await cluster.stop_server("server-0")
    await cluster.start_server("server-0")
    await append(client, b"after")
    found, newer = await traced(cluster, 0, 0), await traced(cluster, 0, 1)
    assert found.session is None
    assert older.session is not None
    assert found.owner_session == newer.session == newer.owner_session
    assert found.owner_session > older.session
    assert f"in a session before {newer.session}" in "\n".join(command.as_lines(found, None))
    assert f"in session {newer.session}" in "\n".join(command.as_lines(newer, None))


async def test_a_replica_that_does_not_hold_it_or_is_unreachable_is_part_of_the_answer(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    await append(client, b"data")
    await cluster.kill_storage("storage-1")
    asked = transaction_trace._stored

    async def corrupted(channel: Any, request: pb.ReadRequest) -> Any:
        answer = await asked(channel, request)
        if channel.address.startswith("storage-2") and isinstance(answer, transaction_trace._Stored):
            return transaction_trace._Stored(answer.record[:-1] + b"?", answer.append_time_ms)
        return answer

    monkeypatch.setattr(transaction_trace, "_stored", corrupted)
    found = await traced(cluster, 0, 0)
    assert [(each.name, each.holds) for each in found.replicas] == [("storage-0", True), ("storage-1", None), ("storage-2", False)]
    assert found.replicas[1].reason is not None
    assert "connection lost" in found.replicas[1].reason
    assert found.replicas[2].reason == "it holds other bytes under this id"
    shown = list(command.as_lines(found, None))
    assert "replica      storage-0: holds it" in shown
    assert any(line.startswith("replica      storage-1: unknown: connection lost") for line in shown)


@pytest.mark.parametrize(
    ("outcome", "holds"), [(OutOfRange(partition=0, asked=3, first=5, last=9), False), (None, False), (Unavailable(reason="busy"), None)]
)
async def test_only_a_replica_that_answers_is_known_to_lack_a_transaction(outcome: WaltzError | None, holds: bool | None) -> None:
    class Replica:
        async def receive(self) -> None:
            if outcome is not None:
                raise outcome

        async def cancel(self) -> None:
            """Holds nothing."""

        def read(self, *_: object) -> Replica:
            return self

    channel: Any = Replica()
    answer = await transaction_trace._stored(channel, pb.ReadRequest())
    assert transaction_trace._replica("storage-0", answer, transaction_trace._Stored(b"", 0)).holds is holds


async def test_an_untraceable_transaction_is_a_typed_error(cluster: InMemoryCluster) -> None:
    client = await cluster.client()
    await append(client, b"data")
    with pytest.raises(InvalidRequest, match="no such partition: partition=2 partitions=2"):
        await traced(cluster, 2, 0)
    with pytest.raises(NotCommittedYet, match=r"not committed yet: .* partition=0 asked=1 first=0 last=0") as early:
        await traced(cluster, 0, 1)
    assert (early.value.exit_code, early.value.retriable) == (UNAVAILABLE, True)
    with pytest.raises(NotCommittedYet, match="last=-1"):
        await traced(cluster, 1, 0)
    for number in range(3):
        await cluster.kill_storage(f"storage-{number}")
    with pytest.raises(Unavailable):
        await traced(cluster, 0, 0, timeout_s=0.3)


def test_a_trimmed_transaction_is_said_to_be_trimmed() -> None:
    with pytest.raises(Trimmed, match=r"the transaction was trimmed by retention: partition=3 asked=6 first=7 last=9") as gone:
        transaction_trace._expect_within(pb.Bound(partition=3, first_transaction_id=7, high_water_mark=9), 6)
    assert isinstance(gone.value, OutOfRange)
    assert gone.value.exit_code == USAGE
    transaction_trace._expect_within(pb.Bound(partition=3, first_transaction_id=7, high_water_mark=9), 7)
    transaction_trace._expect_within(pb.Bound(partition=3, first_transaction_id=7, high_water_mark=9), 9)


async def test_a_topic_that_names_its_readers_shows_a_trace_to_them_alone(cluster: InMemoryCluster) -> None:
    await cluster.create_topic("shop/orders", 1, properties={"allow-read": "ada"})
    client = await cluster.client(ClientSettings(principal="ada"))
    topic = await client.topic("shop/orders")
    await topic.append(b"data")
    partition = topic.log_partition(0)
    with pytest.raises(NotAllowed):
        await traced(cluster, partition, 0, principal="bob")
    assert (await traced(cluster, partition, 0, principal="ada")).client_id == client.client_id


async def shown(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], lookup: Callable[..., TableVersion] | None, output: str) -> str:
    capsys.readouterr()
    table = None if lookup is None else "tables/t"
    assert await command.show(await traced(cluster, 0, 0), table=table, lookup=lookup, output=output) == 0
    return capsys.readouterr().out


async def test_programs_read_json_and_people_read_lines(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    client = await cluster.client()
    await append(client, b"data")
    found = json.loads(await shown(cluster, capsys, None, "json"))
    assert found["table"] is None
    assert (found["partition"], found["transaction_id"], found["client_id"]) == (0, 0, client.client_id)
    assert found["timestamp"].endswith("+00:00")
    assert found["block"] == {"first_transaction_id": 0, "last_transaction_id": 0, "offset": 0, "bytes": 44, "record_bytes": 44}
    assert found["replicas"][2] == {"name": "storage-2", "holds": True, "reason": None}
    asked: list[tuple[Any, ...]] = []

    def lookup(*place: Any) -> TableVersion:
        asked.append(place)
        return TableVersion("tables/t", 7, exact=True, mark=None)

    assert json.loads(await shown(cluster, capsys, lookup, "json"))["table"] == {"path": "tables/t", "version": 7, "exact": True, "mark": None}
    assert asked == [("tables/t", 0, 0, str(cluster.key))]
    lines = (await shown(cluster, capsys, lookup, "table")).splitlines()
    assert lines[-1] == "table        tables/t: version 7"
    assert f"sender       client {client.client_id}, generation" in "\n".join(lines)


@pytest.mark.parametrize(
    ("held", "reported"),
    [
        (TableVersion("t", 3, exact=True, mark=None), "t: version 3"),
        (TableVersion("t", 3, exact=False, mark=None), "t: version 3 or an older one that the table's log does not list any more"),
        (TableVersion("t", None, exact=True, mark=41), "t: not there yet, the table ends at transaction 41"),
    ],
)
def test_a_line_says_what_the_table_holds(held: TableVersion, reported: str) -> None:
    assert f"{held.path}: {command._version(held)}" == reported


def test_without_the_sink_a_table_is_refused_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "entry_points", lambda **_: ())
    assert run(["trace", "127.0.0.1:1", "-p", "0", "-t", "0", "--table", "t"]) == USAGE
    assert capsys.readouterr().err == "waltz: --table needs the Delta sink: install the extra spark of waltz-platform\n"
    monkeypatch.setattr(command, "entry_points", lambda **_: (EntryPoint("delta", "package_that_is_not_there:find", command.TABLES),))
    with pytest.raises(InvalidSetting, match="--table needs a package that is not installed"):
        command._lookup()


def test_the_sinks_lookup_is_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][command.TABLES]
    assert EntryPoint("delta", declared["delta"], command.TABLES).load().__name__ == "table_version"
