"""How large the properties of a topic may be. An owner sends those of a partition, and the names of its readers, to the storage nodes with its
requests, and a node refuses a request above its limits. So the catalog refuses such a topic when it is created: otherwise no owner could open or
maintain its partitions. A test compares these limits with those of storage nodes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from waltz_log.core.topics.access import allowed
from waltz_log.errors import InvalidSetting

__all__ = ["NAME_BYTES_MAX", "PROPERTIES_BYTES_MAX", "PROPERTIES_MAX", "READERS_MAX", "VALUE_BYTES_MAX", "check_property_limits"]

PROPERTIES_MAX: Final = 1024
"""For one partition, and so are the other limits."""

NAME_BYTES_MAX: Final = 256
VALUE_BYTES_MAX: Final = 16 * 1024
PROPERTIES_BYTES_MAX: Final = 128 * 1024
"""Names and values together: half of the request that carries them."""

READERS_MAX: Final = 4096


def check_property_limits(properties: Mapping[str, str]) -> None:
    """The properties of one partition. Raises `InvalidSetting`."""
    if len(properties) > PROPERTIES_MAX:
        raise _refused("--property", f"sets {len(properties)} properties for a partition, the limit is {PROPERTIES_MAX}")
    whole = 0
    for name, text in properties.items():
        name_bytes, text_bytes = len(name.encode()), len(text.encode())
        whole += name_bytes + text_bytes
        if name_bytes > NAME_BYTES_MAX:
            raise _refused("--property", f"has a name of {name_bytes} bytes, the limit is {NAME_BYTES_MAX}")
        if text_bytes > VALUE_BYTES_MAX:
            raise _refused(name, f"has {text_bytes} bytes, the limit is {VALUE_BYTES_MAX}")
    if whole > PROPERTIES_BYTES_MAX:
        raise _refused("--property", f"sets {whole} bytes of properties for a partition, the limit is {PROPERTIES_BYTES_MAX}")
    if (readers := len(allowed(properties, "read"))) > READERS_MAX:
        raise _refused("allow-read", f"names {readers} principals, the limit is {READERS_MAX}")


def _refused(name: str, reason: str) -> InvalidSetting:
    return InvalidSetting(name=name, reason=reason, nearest=None)
