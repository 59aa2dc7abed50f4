"""The endpoint answers in every phase of its process and within its deadline, whatever the event loop and its clients do."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.errors import InvalidSetting, Unavailable
from waltz_log.monitoring import arriving_requests
from waltz_log.monitoring.endpoint import serve_http
from waltz_log.monitoring.http_server import CONNECTIONS_MAX
from waltz_log.monitoring.monitored import Monitored, Source
from waltz_log.monitoring.settings import HttpSettings

DEADLINE_S = 0.3
PATIENCE_S = 20.0


class _Process:
    """A process's event loop in a thread of the test."""

    def __init__(self, monitored: Monitored) -> None:
        self.monitored = monitored
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, call: Callable[[], None]) -> None:
        async def called() -> None:
            call()

        asyncio.run_coroutine_threadsafe(called(), self.loop).result(PATIENCE_S)

    def serve(self, source: Source) -> None:
        self.run(lambda: self.monitored.serving(source))

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def _gives(statistics: ServerStatistics | NodeStatistics) -> Source:
    async def source() -> ServerStatistics | NodeStatistics:
        return statistics

    return source


@pytest.fixture
def monitored() -> Monitored:
    return Monitored("server", deadline_s=DEADLINE_S, alive_s=0.1)


@pytest.fixture
def process(monitored: Monitored) -> Iterator[_Process]:
    process = _Process(monitored)
    yield process
    if not process.loop.is_closed():
        process.end()


@pytest.fixture
def port(monitored: Monitored) -> Iterator[int]:
    with serve_http(HttpSettings(port=0), monitored) as settings:
        assert settings.port > 0
        yield settings.port


def _get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@contextmanager
def _blocked(process: _Process) -> Iterator[None]:
    """The event loop runs something that does not end."""
    entered, leave = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        leave.wait(PATIENCE_S)

    process.loop.call_soon_threadsafe(block)
    assert entered.wait(PATIENCE_S)
    try:
        yield
    finally:
        leave.set()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


def test_before_the_event_loop_runs_the_process_lives_and_is_not_ready(port: int) -> None:
    assert _get(port, "/livez") == (200, "livez check passed\n")
    assert _get(port, "/readyz") == (503, "[-]process failed: starting: the process has just begun\nreadyz check failed\n")
    status, text = _get(port, "/metrics")
    assert status == 200
    assert "waltz_ready 0.0" in text


def test_the_reason_of_a_phase_is_shown(port: int, process: _Process, node: NodeStatistics) -> None:
    process.run(lambda: process.monitored.starting("opening the directory"))
    assert "starting: opening the directory" in _get(port, "/readyz")[1]
    process.serve(_gives(replace(node, stopped={}, partitions=node.partitions[:1])))
    assert _get(port, "/readyz") == (200, "readyz check passed\n")
    assert _get(port, "/readyz?verbose") == (200, "[+]process ok\n[+]disk ok\n[+]partition 0 ok\nreadyz check passed\n")
    process.run(process.monitored.stopping)
    assert _get(port, "/readyz") == (503, "[-]process failed: stopping: the process was asked to stop\nreadyz check failed\n")
    assert "waltz_storage_disk_free_bytes 1000.0" in _get(port, "/metrics")[1]


def test_metrics_are_what_the_event_loop_reports(port: int, process: _Process, server: ServerStatistics) -> None:
    process.serve(_gives(server))
    families = {family.name: family for family in text_string_to_metric_families(_get(port, "/metrics")[1])}
    assert [sample.value for sample in families["waltz_server_appended_transactions"].samples] == [77]


def test_an_event_loop_that_does_not_answer_holds_nothing_up(port: int, process: _Process, server: ServerStatistics) -> None:
    process.serve(_gives(server))
    with _blocked(process):
        began = time.monotonic()
        status, text = _get(port, "/readyz")
        assert (status, "did not answer within 0.3 s" in text) == (503, True)
        assert "waltz_statistics_up 0.0" in _get(port, "/metrics")[1]
        assert time.monotonic() - began < PATIENCE_S / 2  # the block would last longer
        assert _get(port, "/livez")[0] in (200, 503)
        _until(lambda: _get(port, "/livez")[0] == 503)
        assert "the event loop has not run for" in _get(port, "/livez")[1]
    _until(lambda: _get(port, "/livez")[0] == 200)
    _until(lambda: "waltz_statistics_up 1.0" in _get(port, "/metrics")[1])


def test_a_source_that_fails_is_a_reason(port: int, process: _Process) -> None:
    async def fails() -> ServerStatistics:
        raise Unavailable(reason="no worker of the node answers")

    process.serve(fails)
    status, text = _get(port, "/readyz")
    assert (status, "no worker of the node answers" in text) == (503, True)


def test_after_the_event_loop_has_ended_it_still_answers(port: int, process: _Process, server: ServerStatistics) -> None:
    process.serve(_gives(server))
    process.end()
    assert _get(port, "/livez")[0] == 200
    assert "the event loop has ended" in _get(port, "/readyz")[1]
    assert _get(port, "/metrics")[0] == 200


def test_many_requests_at_once_ask_the_event_loop_a_few_times(port: int, process: _Process, server: ServerStatistics) -> None:
    asked = 0

    async def counts() -> ServerStatistics:
        nonlocal asked
        asked += 1
        return server

    process.serve(counts)
    began = time.monotonic()
    for _ in range(50):
        assert _get(port, "/metrics")[0] == 200
    assert 1 <= asked <= 1 + (time.monotonic() - began) / 0.2 + 1


def test_silent_clients_cost_a_bounded_number_of_threads_and_no_answer_in_the_end(monitored: Monitored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_log.monitoring.endpoint._Handler.timeout", 0.5)
    with serve_http(HttpSettings(port=0), monitored) as settings:
        before = threading.active_count()
        silent = [socket.create_connection(("127.0.0.1", settings.port), timeout=PATIENCE_S) for _ in range(3 * CONNECTIONS_MAX)]
        try:
            _until(lambda: _answers(settings.port))
            assert threading.active_count() <= before + CONNECTIONS_MAX
        finally:
            for each in silent:
                each.close()


def test_a_probe_is_answered_while_hundreds_of_clients_say_little_or_nothing(monitored: Monitored) -> None:
    with serve_http(HttpSettings(port=0), monitored) as settings:
        slow = []
        for number in range(200):
            slow.append(socket.create_connection(("127.0.0.1", settings.port), timeout=PATIENCE_S))
            slow[-1].sendall(b"GET /livez HTTP/1.1\r\n"[: number % 23])
        try:
            began = time.monotonic()
            assert _get(settings.port, "/livez")[0] == 200
            assert time.monotonic() - began < arriving_requests.ARRIVING_S / 2, "no place had to become free"
        finally:
            for each in slow:
                each.close()


def test_a_probe_is_answered_while_every_other_place_waits_for_the_event_loop(server: ServerStatistics) -> None:
    monitored = Monitored("server", deadline_s=4.0, alive_s=60.0)
    process = _Process(monitored)
    process.serve(_gives(server))
    threads = threading.active_count()
    waiting = []
    try:
        with serve_http(HttpSettings(port=0), monitored) as settings:
            with _blocked(process):
                for path in ("/metrics", "/readyz"):
                    for _ in range(2 * CONNECTIONS_MAX):
                        waiting.append(socket.create_connection(("127.0.0.1", settings.port), timeout=PATIENCE_S))
                        waiting[-1].sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
                began = time.monotonic()
                assert _get(settings.port, "/livez")[0] == 200
                assert time.monotonic() - began < 2, "the others wait twice as long at least"
            _until(lambda: threading.active_count() <= threads + 1)
    finally:
        for each in waiting:
            each.close()
        process.end()


def test_the_port_of_probes_is_another_one_of_this_machine_and_has_no_metrics(monitored: Monitored) -> None:
    with serve_http(HttpSettings(port=-1, probe_port=0), monitored) as settings:
        assert settings.address is None
        assert _get(settings.probe_port, "/livez")[0] == 200
        assert _get(settings.probe_port, "/readyz")[0] == 503
        assert _get(settings.probe_port, "/metrics")[0] == 404
        with pytest.raises(OSError, match="probe_port"), serve_http(HttpSettings(probe_port=settings.probe_port), monitored):
            raise AssertionError("the port is in use")
    with serve_http(HttpSettings(host="0.0.0.0", port=0, probe_port=0), monitored) as settings:
        assert settings.port != settings.probe_port


def test_a_worker_that_stands_still_is_not_alive(monitored: Monitored, port: int) -> None:
    stuck = {0: 0.0, 1: 0.0}
    monitored.stuck_workers = lambda: stuck
    assert _get(port, "/livez")[0] == 200
    assert _get(port, "/livez?verbose")[1].splitlines()[1:3] == ["[+]worker 0 ok", "[+]worker 1 ok"]
    stuck[1] = 12.0
    status, text = _get(port, "/livez")
    assert status == 503
    assert "[-]worker 1 failed: its event loop has not run for 12 s" in text


def _answers(port: int) -> bool:
    try:
        return _get(port, "/livez")[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


@pytest.mark.parametrize(
    "sent", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"a" * 100_000 + b"\r\n\r\n", b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200]
)
def test_a_bad_request_leaves_the_endpoint_as_it_was(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client, suppress(OSError):  # it may be closed before all is sent
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    assert _get(port, "/livez")[0] == 200


def test_other_paths_and_methods(port: int) -> None:
    assert _get(port, "/nothing")[0] == 404
    assert "/metrics" in _get(port, "/")[1]
    assert _get(port, "/livez", "HEAD") == (200, "")
    assert _get(port, "/metrics", "POST")[0] == 501


def test_no_port_means_no_endpoint(monitored: Monitored) -> None:
    before = threading.active_count()
    with serve_http(HttpSettings(), monitored) as settings:
        assert settings.address is None
        assert threading.active_count() == before


def test_an_address_in_use_is_explained(monitored: Monitored, port: int) -> None:
    with (
        pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{port} for http: .* .choose another http.host or http.port"),
        serve_http(HttpSettings(port=port), monitored),
    ):
        pass


def test_a_port_outside_the_range_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="port"):
        HttpSettings(port=70_000)


def test_an_address_of_ipv6_is_in_brackets() -> None:
    assert HttpSettings(host="::1", port=9100).address == "[::1]:9100"
