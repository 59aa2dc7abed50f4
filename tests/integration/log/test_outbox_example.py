"""The example service as it is run: orders are accepted while the log is down and while the service itself is killed, and each is in the log once."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client import ClientSettings, GiveUp, Intent, SyncOutbox, TransactionContext, WaltzClient
from waltz_log.errors import InvalidSetting
from waltz_log.processes.children import Processes
from waltz_log.processes.local_cluster import LocalCluster

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "orders.py"
PARTITIONS = 2

pytestmark = pytest.mark.timeout(240)


class Service:
    def __init__(self, cluster: str, directory: Path) -> None:
        self._processes = Processes(directory / "logs")
        self._command = [sys.executable, str(EXAMPLE), "--cluster", cluster, "--directory", str(directory / "orders")]
        self._command += ["--partitions", str(PARTITIONS), "--listen", "127.0.0.1:0"]
        self._lives = 0
        self._address = ""

    def start(self) -> None:
        self._lives += 1
        name = f"orders-{self._lives}"
        self._processes.start(name, self._command)
        within(60, lambda: self._listening_at(name) is not None)
        self._address = self._listening_at(name) or ""

    def _listening_at(self, name: str) -> str | None:
        """It says so, and may have said more since."""
        found = re.search(r"^.*listening.*\baddress=(\S+)$", self._processes.log(name).read_text(), re.MULTILINE)
        return None if found is None else found[1]

    def kill(self) -> None:
        self._processes.kill(f"orders-{self._lives}")

    def stop(self) -> int | None:
        return self._processes.stop([f"orders-{self._lives}"], 15.0)[f"orders-{self._lives}"]

    def close(self) -> None:
        self._processes.close()

    def order(self, order_id: str, quantity: int = 1) -> int:
        body = json.dumps({"item": "lamp", "quantity": quantity}).encode()
        return self._ask(urllib.request.Request(f"http://{self._address}/orders", body, {"Idempotency-Key": order_id}))[0]

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        return self._ask(urllib.request.Request(f"http://{self._address}{path}"))

    def _ask(self, request: urllib.request.Request) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


def within(seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


async def _orders(cluster: str) -> list[str]:
    found: list[str] = []
    async with WaltzClient.open(cluster) as client:
        for partition in range(PARTITIONS):
            mark = await client.high_water_mark(partition)
            if mark >= 0:
                async for batch in client.feed_batches(partition):
                    found += [json.loads(transaction.data)["id"] for transaction in batch]
                    if batch[-1].transaction_id >= mark:
                        break
    return found


def test_the_blocking_outbox_accepts_before_it_ever_met_the_cluster_and_delivers_when_it_is_there(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", partitions=PARTITIONS, storages=1, servers=1, session_timeout_s=2.0) as cluster:
        cluster.kill("zookeeper")
        outbox = SyncOutbox(tmp_path / "outbox", cluster.cluster, client_settings=ClientSettings(connect_timeout_s=1.0))

        @outbox.handler("refuse")
        def refuse(tx: TransactionContext, arguments: object) -> None:
            raise GiveUp(f"refused: {arguments}")

        with outbox:
            receipts = outbox.submit([Intent.data(0, b"a"), Intent.data(1, b"b"), Intent.call("refuse", 7, 0)])
            assert [receipt.known for receipt in receipts] == [None] * 3
            with pytest.raises(TimeoutError):
                receipts[0].outcome(timeout_s=0.2)
            with pytest.raises(InvalidSetting, match="another process"):
                SyncOutbox(tmp_path / "outbox", cluster.cluster).start()
            cluster.start("zookeeper")
            assert [receipt.outcome(timeout_s=60).transaction_id for receipt in receipts] == [0, 0, None]
            outbox.flush(timeout_s=60)
            (dead,) = outbox.dead_letters()
            assert dead.reason == "refused: 7"
            again = outbox.resubmit(dead.dead_id, Intent.data(0, b"instead"))
            assert again.outcome(timeout_s=60).transaction_id == 1
            outbox.submit(Intent.call("refuse", 8, 0))
            within(30, lambda: len(outbox.dead_letters()) == 1)
            outbox.drop(outbox.dead_letters()[0].dead_id)
            statistics = outbox.statistics()
            assert (statistics.depth, statistics.dead, statistics.forwarded, statistics.connected) == (0, 0, 3, True)
        outbox.close()


def test_orders_are_accepted_while_the_log_is_down_and_placed_once_when_it_is_back(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", partitions=PARTITIONS, storages=3, servers=1, session_timeout_s=2.0) as cluster:
        service = Service(cluster.cluster, tmp_path)
        try:
            service.start()
            assert service.order("before") == 202
            within(30, lambda: service.get("/orders/before")[0] == 200)
            assert service.order("before") == 202, "a client may repeat its request at any time"

            cluster.kill("server-0")
            assert [service.order(f"down-{number}") for number in range(20)] == [202] * 20
            assert [service.order(f"down-{number}") for number in range(5)] == [202] * 5
            service.kill()
            service.start()
            assert [service.order(f"later-{number % 10}") for number in range(20)] == [202] * 20
            assert service.get("/orders/down-0") == (404, {"state": "not placed"})
            health = service.get("/health")[1]
            assert health["depth"] >= 45
            assert service.get("/orders/down-0")[0] == 404
            assert service.order("no quantity", quantity=0) == 202
            assert service.get("/nowhere")[0] == 404

            cluster.start("server-0")
            wanted = {"before", "no quantity", *(f"down-{number}" for number in range(20)), *(f"later-{number}" for number in range(10))}
            within(60, lambda: service.get("/health")[1]["depth"] == 0)
            within(60, lambda: service.get("/orders/down-0")[1]["state"] == "placed")
            assert service.stop() == 0
            found = asyncio.run(_orders(cluster.cluster))
            assert sorted(found) == sorted(wanted)
        finally:
            service.close()
