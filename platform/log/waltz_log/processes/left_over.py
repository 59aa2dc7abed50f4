"""Variables of another cluster's nodes, which a shell or an image may have. A node prefers them to its file: three storage nodes of a local
cluster would share one directory, and its log servers would join the other cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from waltz_log.errors import InvalidRequest

__all__ = ["refuse_variables_of_nodes"]

_DECIDED: Final = ("coordinator", "listen", "name", "directory", "http", "tls")
"""Settings that a local cluster decides for each of its nodes. Every other variable is a choice of the user."""

_VARIABLES: Final = frozenset(f"WALTZ_{kind}_{name}".upper() for kind in ("storage", "server") for name in _DECIDED)


def refuse_variables_of_nodes(environment: Mapping[str, str]) -> None:
    """Raises `InvalidRequest` if a variable would replace what makes a node part of its local cluster."""
    given = sorted(_VARIABLES & environment.keys())
    if given:
        raise InvalidRequest(reason=f"{given[0]} is set, and a cluster of this machine decides that for its nodes; unset {' '.join(given)}")
