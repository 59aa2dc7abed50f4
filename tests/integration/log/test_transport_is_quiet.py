"""gRPC prints nothing of its own: not into applications whose server is killed, and not about a port that is in use."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_log.transport.addresses import ReservedAddress, listen_error
from waltz_log.transport.grpc import GrpcNetwork

ROOT = Path(__file__).parents[3]
SEEN = """
import importlib, os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_VERBOSITY"), flush=True)

sys.meta_path.insert(0, Watch())
importlib.import_module(sys.argv[1])
importlib.import_module("waltz_log.transport.grpc")
"""

TAKEN = """
import asyncio, sys
from waltz_log.transport.grpc import GrpcNetwork

try:
    asyncio.run(GrpcNetwork().serve(sys.argv[1], []))
except OSError as error:
    print(error)
"""


def run(code: str, *arguments: str, **environment: str) -> tuple[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip(), done.stderr.strip()


@pytest.mark.parametrize("module", ["waltz_log.client", "pyspark_waltz.ranges", "pyspark_waltz.view_reads", "waltz_log.cli.main"])
def test_the_switch_is_set_when_an_application_imports_grpc_through_the_platform(module: str) -> None:
    """Later gRPC does not read it any more."""
    assert run(SEEN, module)[0] == "NONE"


def test_a_value_of_the_users_own_stays() -> None:
    assert run(SEEN, "waltz_log.client", GRPC_VERBOSITY="DEBUG")[0] == "DEBUG"


def test_a_port_that_is_in_use_is_one_sentence_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        reported, printed = run(TAKEN, address)
        expected = f"cannot listen on {address}: Address already in use (another process listens there; stop it,"
        assert reported.startswith(expected)
        assert "GRPC_VERBOSITY" not in reported
        assert printed == ""
        with pytest.raises(OSError, match=re.escape(expected)):
            ReservedAddress(address)


@pytest.mark.parametrize(
    ("address", "reported"),
    [
        ("127.0.0.1:70000", "no such port"),
        ("127.0.0.1:x", "--listen is host:port"),
        ("203.0.113.7:0", "this machine has no such address"),
        ("no-such-host.invalid:0", "correct the host"),
    ],
)
async def test_an_address_that_is_none_says_why(address: str, reported: str) -> None:
    assert reported in str(listen_error(address))
    if address != "no-such-host.invalid:0":
        with pytest.raises(OSError, match=r"cannot listen on .*\(.*\)"):
            await GrpcNetwork().serve(address, [])
