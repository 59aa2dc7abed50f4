"""The block `tls` of a settings file, and the same from the environment for clients, commands and Spark.

Node settings and client settings have a field `tls`. If a program has no settings, such as a command or a Spark executor, the variables
`WALTZ_TLS_CERTIFICATE`, `WALTZ_TLS_KEY` and `WALTZ_TLS_AUTHORITIES` name the three files.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from waltz_log.errors import InvalidSetting
from waltz_log.settings import Settings

__all__ = ["ENVIRONMENT", "TlsSettings", "TokenSettings", "chosen_tls", "expect_plain_allowed", "expect_protected", "is_loopback", "tls_environment"]

ENVIRONMENT = "WALTZ_TLS"
FILES = ("certificate", "key", "authorities")


class TokenSettings(Settings):
    """Which tokens (JWT) a node accepts beside certificates. No token makes a peer a node."""

    issuer: str = Field(min_length=1, description="The signer of tokens, as their claim `iss` names it.")
    audience: str = Field(min_length=1, description="This cluster, as the claim `aud` of tokens names it.")
    keys: Path = Field(description="JSON file with the public keys of the issuer, a JWK set. It is read again when it changes.")
    bound: bool = Field(
        default=False,
        description="Accepts only tokens that name the certificate of their owner, in the claim `cnf` as `x5t#S256` (RFC 8705). A token that names "
        "one is accepted from its owner alone in any case.",
    )
    operators: tuple[str, ...] = Field(default=(), description="Subjects that administer the cluster. A `*` stands for any text without a slash.")
    applications: tuple[str, ...] = Field(default=(), description="Subjects that append and read.")
    readers: tuple[str, ...] = Field(default=(), description="Subjects that read, and never append.")


class TlsSettings(Settings):
    """Mutual TLS. Both ends of each connection present a certificate of a trusted authority. The peer's name comes from its certificate, never from
    a message."""

    certificate: Path = Field(
        description="PEM file with this process's certificate, and the intermediate certificates after it. Its SAN holds the process's name: a URI "
        "`spiffe://DOMAIN/ROLE/NAME`, or a DNS name. A node's certificate also lists the addresses that peers connect to."
    )
    key: Path = Field(description="PEM file with the certificate's private key, in PKCS#8 and without a password. Only this process's user reads it.")
    authorities: Path = Field(
        description="PEM file with the authorities that are trusted. Use an authority of your own: its certificates give access."
    )
    nodes: tuple[str, ...] = Field(
        default=("spiffe://*/node/*",),
        description="Names of peers that are nodes of the cluster: they replicate, recover and fence. A `*` stands for any text without a slash. "
        "Clients and nodes send nothing to a server without one of these names.",
    )
    operators: tuple[str, ...] = Field(
        default=("spiffe://*/operator/*",), description="Names of peers that administer the cluster and see its status. They may append and read too."
    )
    applications: tuple[str, ...] = Field(default=("spiffe://*/application/*",), description="Names of peers that append and read.")
    readers: tuple[str, ...] = Field(default=("spiffe://*/reader/*",), description="Names of peers that read, and never append.")
    coordinators: tuple[str, ...] = Field(
        default=("spiffe://*/zookeeper/*",), description="Names of ZooKeeper's servers. This process sends nothing to a server without one of them."
    )
    tokens: TokenSettings | None = Field(
        default=None,
        description="On a node: accept tokens (JWT) too. The subject of a token is then the caller, instead of the name in the certificate.",
    )
    token: Path | None = Field(
        default=None, description="On a client: a file with the token that it sends with each call. It is read again when it changes."
    )
    coordinator_writers: tuple[str, ...] = Field(
        default=("CN=node,O=waltz", "CN=operator,O=waltz", "CN=zookeeper,O=waltz"),
        description="Subjects of the certificates of nodes, operators and ZooKeeper, as RFC 4514 writes them. ZooKeeper lets them do everything, and "
        "no other client anything. Choose the same for all nodes. If this process's own subject is not among them, its nodes in ZooKeeper are not "
        "protected.",
    )


def chosen_tls(settings: TlsSettings | None, environment: Mapping[str, str] = os.environ) -> TlsSettings | None:
    """The settings, or those of the environment if there are none. None: connections are plain text.

    Raises `InvalidSetting` if the environment names only some of the three files.
    """
    if settings is not None:
        return settings
    given = [name for name in FILES if environment.get(f"{ENVIRONMENT}_{name.upper()}")]
    if not given:
        return None
    if len(given) < len(FILES):
        lacking = ", ".join(f"{ENVIRONMENT}_{name.upper()}" for name in FILES if name not in given)
        raise InvalidSetting(name=f"{ENVIRONMENT}_{given[0].upper()}", reason=f"needs {lacking} beside it", nearest=None)
    return TlsSettings.load(None, prefix=ENVIRONMENT, environment=environment)


def tls_environment(settings: TlsSettings) -> dict[str, str]:
    """The variables that give another process, such as a Spark executor, the same files, and the names of the peers that it may connect to."""
    names = (*FILES, *(("token",) if settings.token is not None else ()))
    found = {f"{ENVIRONMENT}_{name.upper()}": str(getattr(settings, name)) for name in names}
    for name in ("nodes", "coordinators"):
        if getattr(settings, name) != TlsSettings.model_fields[name].default:
            found[f"{ENVIRONMENT}_{name.upper()}"] = json.dumps(getattr(settings, name))
    return found


def expect_protected(listen: str, tls: TlsSettings | None, *, insecure: bool) -> None:
    """Raises `InvalidSetting` for a node without TLS that listens at an address that other machines reach."""
    if tls is None:
        remedy = "set `tls` (`waltz certificate create` makes certificates), listen at 127.0.0.1, or set `insecure: true`"
        expect_plain_allowed(listen, setting="tls", remedy=remedy, insecure=insecure)


def expect_plain_allowed(address: str, *, setting: str, remedy: str, insecure: bool) -> bool:
    """Whether plain text at the address reaches other machines, which `insecure` allows; otherwise raises `InvalidSetting` for the `setting` that
    protects it. `remedy`: what to do, the word that stands for `insecure` last."""
    if is_loopback(address):
        return False
    if not insecure:
        reason = f"is required, because {address} can be reached from other machines: {remedy} in a network where every machine and person is trusted"
        raise InvalidSetting(name=setting, reason=reason, nearest=None)
    return True


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address, `host:port` or `unix:PATH`."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
