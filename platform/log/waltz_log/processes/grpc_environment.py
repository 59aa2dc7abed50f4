"""What gRPC reads from the environment, once, when it is first used; for what is started as `waltz` and its workers, before they import gRPC.

Sockets are polled by the thread that waits for them instead of by a pool that hands each event on: decision 16 tells what that saves a node. A gRPC
that does not know the switches any more says so on stderr and goes on without them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GRPC_ENVIRONMENT"]

GRPC_ENVIRONMENT: Final = {"GRPC_VERBOSITY": "NONE", "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener"}
