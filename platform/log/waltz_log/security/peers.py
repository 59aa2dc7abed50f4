"""Whether the process at the other end of a connection is the one that this process wants to reach. Pure, except for `refused`, which logs.

A certificate of a trusted authority proves only that its owner has a place in the cluster. An application has one too. So a peer must have the role
of what it is reached as, and where the cluster announces a name for the address (`core.node_address`), it must have this name.
"""

from __future__ import annotations

import ssl
import time
from collections import OrderedDict
from typing import Final

from waltz_log.errors import ConnectionLost
from waltz_log.loggers import get_logger
from waltz_log.security.identity import Identity, Role

__all__ = ["NODE_CERTIFICATE", "expect_node", "handshake_refusal", "refused"]

log = get_logger(__name__)

NODE_CERTIFICATE: Final = (
    "a node needs a certificate with one URI spiffe://DOMAIN/node/NAME, or a name that fits the setting tls.nodes, among its subject alternative "
    "names, the host names and addresses of the node, and the extended key usages serverAuth and clientAuth"
)

REPEAT_S: Final = 60.0
"""Between two log lines about one address. A caller tries again several times a second."""

ADDRESSES_MAX: Final = 1024

_logged: OrderedDict[str, float] = OrderedDict()


def expect_node(address: str, identity: Identity | None, announced: str | None) -> Identity:
    """The peer at the address, if it is a node and has the announced name. `announced`: empty: the node there announced no name, as one without TLS;
    None: the address does not come from the cluster, and any node may answer there. Raises `ConnectionLost`."""
    found = "a peer without a name" if identity is None else identity.principal
    if identity is None or Role.NODE not in identity.roles:
        raise refused(address, f"{found} answers there, which is not a node: {NODE_CERTIFICATE}")
    if announced == "":
        raise refused(address, f"the node there registered without a name: start it with the settings tls, {found} answers there")
    if announced is not None and identity.principal != announced:
        raise refused(address, f"{found} answers there, and the cluster announces {announced}: give each node the certificate of its own name")
    return identity


def refused(address: str, reason: str) -> ConnectionLost:
    """The error for a peer to which nothing is sent. Logs it, at most once a minute for each address."""
    now_s = time.monotonic()
    if now_s - _logged.get(address, -REPEAT_S) >= REPEAT_S:
        _logged[address] = now_s
        _logged.move_to_end(address)
        while len(_logged) > ADDRESSES_MAX:
            _logged.popitem(last=False)
        log.error("peer refused", address=address, reason=reason)
    return ConnectionLost(address=address, reason=f"the peer is refused: {reason}")


def handshake_refusal(error: ssl.SSLError) -> str:
    """Why no connection to the peer is secure, and what to change."""
    text = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else (error.reason or str(error))
    if "purpose" in text:
        return f"its certificate may not serve: {NODE_CERTIFICATE}"
    return f"its certificate is not accepted, {text}"
