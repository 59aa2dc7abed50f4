"""Environment variables that gRPC reads once, on first use; the command `waltz` and its workers set them before they import gRPC.

The thread that waits for a socket polls it itself, instead of a pool that hands each event on: decision 16 states what that saves a node. A gRPC that
no longer knows these variables reports that on stderr and continues without them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GRPC_ENVIRONMENT"]

GRPC_ENVIRONMENT: Final = {"GRPC_VERBOSITY": "NONE", "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener"}
