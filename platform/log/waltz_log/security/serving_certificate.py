"""Whether the certificate of this process is one that its clients accept, checked before it serves. Otherwise every client would refuse it."""

from __future__ import annotations

from waltz_log.errors import InvalidSetting
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import Role
from waltz_log.security.peers import NODE_CERTIFICATE

__all__ = ["expect_node_certificate", "expect_serving_certificate"]


def expect_serving_certificate(certificates: Certificates, what: str) -> None:
    """Raises `InvalidSetting` if no client accepts the certificate of a server. `what`: who serves with it."""
    own = certificates.current().own
    if own is not None and not own.serves:
        reason = (
            f"{certificates.settings.certificate} may not serve, and {what} does: issue a certificate with the extended key usages serverAuth and "
            "clientAuth (`waltz certificate create --serve`)"
        )
        raise InvalidSetting(name="tls.certificate", reason=reason, nearest=None)


def expect_node_certificate(certificates: Certificates) -> None:
    """Raises `InvalidSetting` if peers would refuse this process as a node."""
    own = certificates.current().own
    if own is None:
        return
    identity = certificates.identify(own.uris, own.dns_names)
    if identity is None or Role.NODE not in identity.roles or not own.serves:
        name = "has no principal" if identity is None else f"is of {identity.principal}"
        usage = "" if own.serves else " and may not serve"
        reason = f"{certificates.settings.certificate} {name}{usage}: {NODE_CERTIFICATE}"
        raise InvalidSetting(name="tls.certificate", reason=reason, nearest=None)
