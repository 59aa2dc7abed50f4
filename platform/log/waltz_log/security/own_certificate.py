"""What a certificate of this process says about itself: its names, its dates, and whether it may serve.

Needs the package cryptography, which a client's install may lack: then nothing is known here, and the peers still check all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from waltz_log.errors import InvalidSetting

__all__ = ["OwnCertificate", "read_certificate"]


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """`expires_s`: seconds since 1970. `serves`: a client accepts the certificate as that of a server, since its extended key usage names
    `serverAuth` or it has none."""

    expires_s: float
    uris: tuple[str, ...]
    dns_names: tuple[str, ...]
    serves: bool


def read_certificate(certificate: bytes, path: Path, now_s: float) -> OwnCertificate | None:
    """The first certificate of a PEM file; None without the package. Raises `InvalidSetting` if it cannot be read or is not valid at `now_s`."""
    try:
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ModuleNotFoundError:
        return None  # a client's install; the handshake still checks the dates
    try:
        found = x509.load_pem_x509_certificates(certificate)[0]
        extensions = {type(each.value): each.value for each in found.extensions}
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise InvalidSetting(name="tls.certificate", reason=f"{path} holds no certificate: {error}", nearest=None) from None
    starts, ends = found.not_valid_before_utc, found.not_valid_after_utc
    if now_s > ends.timestamp():
        raise InvalidSetting(
            name="tls.certificate", reason=f"{path} expired on {ends:%Y-%m-%d %H:%M} UTC: replace it, or correct this machine's clock", nearest=None
        )
    if now_s < starts.timestamp():
        reason = f"{path} is valid from {starts:%Y-%m-%d %H:%M} UTC on, which this machine's clock has not reached: correct the clock"
        raise InvalidSetting(name="tls.certificate", reason=reason, nearest=None)
    names = extensions.get(x509.SubjectAlternativeName)
    uris: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    if isinstance(names, x509.SubjectAlternativeName):
        uris = tuple(names.get_values_for_type(x509.UniformResourceIdentifier))
        dns_names = tuple(names.get_values_for_type(x509.DNSName))
    usages = extensions.get(x509.ExtendedKeyUsage)
    serves = not isinstance(usages, x509.ExtendedKeyUsage) or ExtendedKeyUsageOID.SERVER_AUTH in usages
    return OwnCertificate(ends.timestamp(), uris, dns_names, serves)
