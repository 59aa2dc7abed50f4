"""What a node checks before it listens: that its connections are protected, or that plain text is intended."""

from __future__ import annotations

from typing import Protocol

from waltz_log.loggers import get_logger
from waltz_log.monitoring.settings import HttpSettings
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, chosen_tls, expect_protected, expect_protected_http, is_loopback

__all__ = ["check_protection"]

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
    """The node's certificates; None without TLS. Raises `InvalidSetting` for unusable ones, and for plain text at an address that other machines
    reach. Warns where `insecure` allows that."""
    tls = chosen_tls(settings.tls)
    expect_protected(settings.listen, tls, insecure=settings.insecure)
    http = settings.http
    expect_protected_http(http.address, tls=http.tls, insecure=settings.insecure)
    if http.address is not None and not http.tls and not is_loopback(http.address):
        log.warning("connections are not protected", listen=http.address, advice="set http.tls; see the security guide")
    if tls is not None:
        return Certificates(tls)
    if settings.insecure:
        log.warning("connections are not protected", listen=settings.listen, advice="set tls; see the security guide")
    return None
