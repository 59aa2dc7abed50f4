"""A service that accepts orders over HTTP, also while the log is down: `python examples/orders.py --cluster host:port --directory var/orders`.

    curl -X POST localhost:8080/orders -H 'Idempotency-Key: 7f3a' -d '{"item": "lamp", "quantity": 2}'     202, accepted: on this machine's disk
    curl localhost:8080/orders/7f3a                                                                        placed, once the log has it
    curl localhost:8080/health                                                                             what the outbox owes

An order is in the log exactly once, after any crash and any repeated request. The outbox forwards each accepted intent once;
the idempotency key removes repeated requests: it is the order's lock, and the handler checks whether the order is in the log already.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zlib import crc32

from waltz_log.client import Intent, Lock, OutboxSettings, SyncOutbox, Transaction, TransactionContext
from waltz_log.errors import OutboxFull, WaltzError

BODY_BYTES_MAX = 64 * 1024


class Orders:
    """The state of the service: the orders in the log, as the outbox's followers apply them; and how a new one is placed."""

    def __init__(self, outbox: SyncOutbox, partitions: int) -> None:
        self.placed: dict[str, dict[str, Any]] = {}
        self.outbox = outbox
        self._partitions = partitions
        outbox.handler("place")(self._place)
        for partition in range(partitions):
            outbox.follow(partition, self._apply)

    def _apply(self, transactions: list[Transaction]) -> None:
        for transaction in transactions:
            order = json.loads(transaction.data)
            self.placed[order["id"]] = order

    def _place(self, tx: TransactionContext, order: Any) -> None:
        """Runs when the log is available, and again if another client changed the same order meanwhile."""
        if order["id"] not in self.placed:
            tx.append(json.dumps(order).encode(), write_locks=[Lock("order", order["id"])])

    def accept(self, order_id: str, order: dict[str, Any]) -> None:
        """Returns when the order is on the local disk."""
        partition = crc32(order_id.encode()) % self._partitions
        self.outbox.submit(Intent.call("place", {"id": order_id, **order}, partition, key=order_id))


def handler(orders: Orders) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            order_id = self.headers.get("Idempotency-Key", "")
            said = self.headers.get("Content-Length", "0")
            length = int(said) if said.isdecimal() and len(said) < 10 else 0
            if self.path != "/orders" or not order_id or not 0 < length <= BODY_BYTES_MAX:
                self._answer(400, {"error": "POST /orders with an Idempotency-Key and a JSON body"})
                return
            try:
                order = json.loads(self.rfile.read(length))
                orders.accept(order_id, {"item": str(order["item"]), "quantity": int(order["quantity"])})
            except OutboxFull as error:
                self._answer(503, {"error": str(error)}, {"Retry-After": "5"})
            except WaltzError as error:
                self._answer(500, {"error": str(error)})
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                self._answer(400, {"error": "an order has an item and a quantity"})
            else:
                self._answer(202, {"id": order_id, "state": "accepted"})

        def do_GET(self) -> None:
            if self.path == "/health":
                self._answer(200, asdict(orders.outbox.statistics()))
            elif (order := orders.placed.get(self.path.removeprefix("/orders/"))) is not None:
                self._answer(200, {"state": "placed", **order})
            else:
                self._answer(404, {"state": "not placed"})

        def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Prints nothing: the service only prints its address."""

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes orders over HTTP and delivers them to the log.")
    parser.add_argument("--cluster", required=True, help="host:port[,host:port] of log servers")
    parser.add_argument("--directory", type=Path, required=True, help="where accepted orders lie until the log has them")
    parser.add_argument("--partitions", type=int, default=4, help="of the cluster; orders are spread over them")
    parser.add_argument("--listen", default="127.0.0.1:8080", help="host:port; port 0 takes a free one")
    arguments = parser.parse_args()
    host, _, port = arguments.listen.rpartition(":")
    outbox = SyncOutbox(arguments.directory, arguments.cluster, OutboxSettings(when_full="refuse"))
    orders = Orders(outbox, arguments.partitions)
    with outbox, ThreadingHTTPServer((host, int(port)), handler(orders)) as server:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        print(f"listening address={host}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
