"""Each module that opens a connection names the test that shows that an impostor gets nothing. A new one without a row fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

PEERS = "tests/unit/log/transport/test_peer_verification.py::"
ZOOKEEPER = "tests/unit/log/coordination/test_secure_connection.py::test_a_server_with_another_name_than_zookeepers_is_sent_nothing"
SOCKETS = "tests/unit/log/processes/test_socket_folder.py::test_the_sockets_of_workers_are_in_a_new_folder_that_only_their_user_enters"

CONNECTS = {
    "log/waltz_log/coordination/coordinator.py": ZOOKEEPER,
    "log/waltz_log/coordination/secure_connection.py": ZOOKEEPER,
    "log/waltz_log/coordination/embedded.py": ZOOKEEPER,
    "log/waltz_log/transport/direct/connection.py": PEERS + "test_another_process_at_the_direct_port_is_sent_nothing",
    "log/waltz_log/transport/grpc_channels.py": PEERS + "test_an_application_at_a_nodes_address_is_sent_nothing",
    "log/waltz_log/transport/verified_peer.py": PEERS + "test_a_relay_that_shows_a_node_and_then_an_impostor_is_sent_nothing",
    "log/waltz_log/transport/forwarding.py": SOCKETS,
    "spark_source/pyspark_waltz/channels.py": (
        "tests/integration/log/test_impostors.py::test_spark_reads_nothing_from_a_storage_node_with_an_applications_certificate"
    ),
    "sink/waltz_delta/console/job_metrics.py": (
        "tests/integration/log/console/test_console_metrics.py::test_a_peer_that_cannot_be_a_job_is_not_asked"
    ),
}

SENDS_NOTHING = {
    "log/waltz_log/client/owners/seeds.py": "asks in plain text, where no log server answered, whether ZooKeeper does; names nothing of the client",
    "log/waltz_log/monitoring/arriving_requests.py": "the serving end",
    "log/waltz_log/processes/coordinator_certificate.py": "ends after the handshake, which shows when the certificate expires",
    "log/waltz_log/processes/worker_link.py": "a socket that the supervisor made",
}

OPENS = {
    *("create_connection", "create_unix_connection", "open_connection", "open_unix_connection", "sock_connect", "wrap_socket", "connect_ex"),
    *("secure_channel", "insecure_channel", "KazooClient", "HTTPConnection", "HTTPSConnection", "urlopen", "build_opener"),
    *("httpx.Client", "httpx.AsyncClient", "requests.get", "requests.post", "aiohttp.ClientSession"),
}
"""What is used to open a connection."""


def _connects(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in OPENS
    if isinstance(node, ast.Attribute):
        return node.attr in OPENS or (isinstance(node.value, ast.Name) and f"{node.value.id}.{node.attr}" in OPENS)
    return False


def test_each_module_that_opens_a_connection_has_a_row() -> None:
    platform = ROOT / "platform"
    found = {str(each.relative_to(platform)) for each in platform.rglob("*.py") if any(map(_connects, ast.walk(ast.parse(each.read_text()))))}
    assert found == {*CONNECTS, *SENDS_NOTHING}, "add a row with the test that an impostor gets nothing, or say in SENDS_NOTHING why it needs none"


@pytest.mark.parametrize("test", sorted(set(CONNECTS.values())))
def test_a_test_that_a_row_names_exists(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert name in [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
