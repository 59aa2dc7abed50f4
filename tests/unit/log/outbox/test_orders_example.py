"""The example service: whatever a request holds is answered, and refused where it is no order."""

from __future__ import annotations

import importlib.util
import threading
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[4] / "examples" / "orders.py"


class Accepting:
    def __init__(self) -> None:
        self.placed: dict[str, Any] = {}

    def accept(self, order_id: str, order: dict[str, Any]) -> None:
        self.placed[order_id] = order


@pytest.mark.parametrize(
    ("body", "length", "status"),
    [
        (b'{"item": "lamp", "quantity": 2}', None, 202),
        (b'{"item": "lamp", "quantity": 1e999}', None, 400),
        (b'{"item": "lamp"}', None, 400),
        (b"[]", None, 400),
        (b"[" * 50_000, None, 400),
        (b"\xff", None, 400),
        (b"", "many", 400),
        (b"", "9" * 5000, 400),
        (b"", "-1", 400),
    ],
)
def test_an_invalid_order_is_refused_with_an_answer(body: bytes, length: str | None, status: int) -> None:
    spec = importlib.util.spec_from_file_location("orders_example", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    orders = Accepting()
    with ThreadingHTTPServer(("127.0.0.1", 0), example.handler(orders)) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            connection.request("POST", "/orders", body, {"Idempotency-Key": "7f3a", "Content-Length": length or str(len(body))})
            assert connection.getresponse().status == status
            connection.close()
        finally:
            server.shutdown()
            serving.join()
    assert len(orders.placed) == (status == 202)
