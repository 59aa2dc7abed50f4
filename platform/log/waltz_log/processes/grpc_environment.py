"""Environment variables that gRPC reads once, on first use; the command `waltz` and its workers set them before they import gRPC.

The thread that waits for a socket polls it itself, instead of a pool that hands each event on: decision 16 states what that saves a node. A gRPC that
no longer knows these variables reports that on stderr and continues without them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GRPC_ENVIRONMENT"]

NO_CIPHER_BELOW_TLS_1_3: Final = "ECDHE-PSK-CHACHA20-POLY1305"
"""The ciphers of gRPC for TLS 1.2, because its Python interface has no minimum version. This cipher needs a secret that no port has, so a handshake
below TLS 1.3 fails. The ciphers of TLS 1.3 are another list."""

GRPC_ENVIRONMENT: Final = {
    "GRPC_VERBOSITY": "NONE",
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
    "GRPC_SSL_CIPHER_SUITES": NO_CIPHER_BELOW_TLS_1_3,
}
