"""Which principals may append to a topic and read it, according to its properties (Partitioned WAL, Regular Topics; docs/guides/topics.md).

`allow-append` and `allow-read` hold names of principals, separated by commas. Without the property every principal may. With TLS a principal is the
name in the client's certificate. Without TLS it is the name that a client states, which nothing verifies. The cluster's own processes read as
`CLUSTER_PRINCIPAL`, which no property can name. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidSetting, NotAllowed

__all__ = ["CLUSTER_PRINCIPAL", "Action", "allowed", "check_access_properties", "check_principal", "expect_allowed"]

Action: TypeAlias = Literal["append", "read"]

PROPERTIES: Final[Mapping[Action, str]] = {"append": "allow-append", "read": "allow-read"}
CLUSTER_PRINCIPAL: Final = "waltz/cluster"

_PREFIX: Final = "allow-"
_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9._@:+-]{1,128}|spiffe://[A-Za-z0-9._@:+/-]{1,240}", re.ASCII)


def check_principal(name: str) -> str:
    """Raises `InvalidSetting` for a name that no property could contain."""
    if not _PRINCIPAL.fullmatch(name):
        raise InvalidSetting(
            name="principal", reason=f"must be 1 to 128 letters, digits and . _ @ : + -, or a spiffe:// name, got {name!r}", nearest=None
        )
    return name


def allowed(properties: Mapping[str, str], action: Action) -> tuple[str, ...]:
    """The allowed principals; empty: all of them."""
    text = properties.get(PROPERTIES[action])
    return () if text is None else tuple(sorted({name.strip() for name in text.split(",")}))


def check_access_properties(properties: Mapping[str, str]) -> None:
    """Raises `InvalidSetting`: a misspelled property would otherwise be ignored and restrict no principal."""
    for name, text in properties.items():
        if not name.startswith(_PREFIX):
            continue
        if name not in PROPERTIES.values():
            raise InvalidSetting.unknown(name, PROPERTIES.values(), what="property of access")
        for principal in text.split(","):
            if not _PRINCIPAL.fullmatch(principal.strip()):
                raise InvalidSetting(name=name, reason=f"must be principals separated by commas, got {text!r}", nearest=None)


def expect_allowed(topic: TopicName | str, principals: tuple[str, ...], action: Action, principal: str | None) -> None:
    """Raises `NotAllowed` if principals are named and this is none of them. None and the empty text: an anonymous client."""
    if principals and principal not in principals and not (principal == CLUSTER_PRINCIPAL and action == "read"):
        raise NotAllowed(action=action, topic=str(topic), principal=principal or None)
