"""An address that was found under a name. The certificate of who answers there must have the name, not the address."""

from __future__ import annotations

from typing import Self

__all__ = ["ResolvedAddress", "given_name"]


class ResolvedAddress(str):
    """`host:port` of an IP address. `name`: the host that was looked up."""

    __slots__ = ("name",)

    name: str

    def __new__(cls, address: str, name: str) -> Self:
        made = super().__new__(cls, address)
        made.name = name
        return made


def given_name(address: str) -> str | None:
    """The host that was looked up; None: the address was not resolved here."""
    return address.name if isinstance(address, ResolvedAddress) else None
