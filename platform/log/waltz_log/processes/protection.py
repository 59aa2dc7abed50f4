"""What a node checks before it listens: that its connections are protected, or that plain text is intended."""

from __future__ import annotations

from typing import Protocol

from waltz_log.loggers import get_logger
from waltz_log.monitoring.settings import HttpSettings
from waltz_log.security.certificates import Certificates
from waltz_log.security.serving_certificate import expect_node_certificate
from waltz_log.security.settings import TlsSettings, chosen_tls, expect_plain_allowed, expect_protected

__all__ = ["check_protection", "principal_of"]

log = get_logger(__name__)


class _NodeSettings(Protocol):
    @property
    def listen(self) -> str: ...
    @property
    def tls(self) -> TlsSettings | None: ...
    @property
    def insecure(self) -> bool: ...
    @property
    def http(self) -> HttpSettings: ...


def check_protection(settings: _NodeSettings) -> Certificates | None:
    """The node's certificates; None without TLS. Raises `InvalidSetting` for unusable ones, for one that peers would refuse as a node's, and for
    plain text at an address that other machines reach. Warns where `insecure` allows that."""
    tls = chosen_tls(settings.tls)
    expect_protected(settings.listen, tls, insecure=settings.insecure)
    _check_http(settings.http, insecure=settings.insecure)
    if tls is not None:
        certificates = Certificates(tls)
        expect_node_certificate(certificates)
        return certificates
    if settings.insecure:
        log.warning("connections are not protected", listen=settings.listen, advice="set tls; see the security guide")
    return None


def principal_of(certificates: Certificates | None) -> str:
    """The name that the node announces; empty without TLS."""
    return "" if certificates is None else certificates.principal or ""


def _check_http(http: HttpSettings, *, insecure: bool) -> None:
    if http.address is None or http.tls:
        return
    remedy = "set `http.tls` and `tls`, set `http.host` to 127.0.0.1, or set `insecure: true`"
    if expect_plain_allowed(http.address, setting="http.tls", remedy=remedy, insecure=insecure):
        log.warning("connections are not protected", listen=http.address, advice="set http.tls; see the security guide")
