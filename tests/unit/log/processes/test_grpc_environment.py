"""The switches that serving processes give to gRPC are ones that the pinned gRPC knows, and what an operator has set stays."""

from __future__ import annotations

import os
import subprocess
import sys

from waltz_log.processes.grpc_environment import GRPC_ENVIRONMENT

CALL = """
import os, asyncio
import waltz_log.cli.main
import grpc

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 20)
    await server.stop(0)
    print(os.environ["GRPC_EXPERIMENTS"])

asyncio.run(main())
"""


def connect(**environment: str) -> tuple[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run([sys.executable, "-c", CALL], env=kept | environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip(), done.stderr


def test_grpc_knows_the_switches_and_an_operators_own_stay() -> None:
    used, reported = connect(GRPC_VERBOSITY="ERROR")
    assert used == GRPC_ENVIRONMENT["GRPC_EXPERIMENTS"]
    assert "Unknown experiment" not in reported
    used, reported = connect(GRPC_EXPERIMENTS="-no_such_switch", GRPC_VERBOSITY="ERROR")
    assert used == "-no_such_switch"
    assert "Unknown experiment" in reported, "what this looks for is what gRPC says"
