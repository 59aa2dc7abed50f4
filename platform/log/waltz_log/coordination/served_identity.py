"""The certificate that the embedded ZooKeeper serves with, followed as its files are replaced.

ZooKeeper reads the key and the certificate from one file, and again for each new connection, so a renewal needs no restart. What it trusts, it reads
once more where it identifies clients, and only at its start: a change of the authorities needs a restart. Sessions survive it, because clients
connect again within their session's timeout.

Both are copies in ZooKeeper's directory, so that a pair of files that does not fit, or a half-written one, is never served. The authorities are
copied to a PKCS#12 file: of two in a PEM file that have the same subject, as an authority and its successor do, ZooKeeper trusts only the last one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

from waltz_log.extras import explain_missing
from waltz_log.security.certificates import Certificates, Pem
from waltz_log.security.settings import TlsSettings
from waltz_log.untrusted_files import write_private

__all__ = ["PASSWORD", "Renewal", "ServedIdentity"]

PASSWORD: Final = "certificates are public"
"""For the copy of the authorities, which holds no secret: Java reads no PKCS#12 file without one."""

Renewal: TypeAlias = Literal["unchanged", "renewed", "restart"]


class ServedIdentity:
    """The served identity of one ZooKeeper. Raises `InvalidSetting` for files that cannot be used at start, `OSError` if the directory cannot be
    written."""

    def __init__(self, directory: Path, tls: TlsSettings) -> None:
        self.identity = directory / "identity.pem"
        self.authorities = directory / "authorities.p12"
        self._certificates = Certificates(tls)
        self._served = self._certificates.current()
        self._write(self._served)

    def renew(self) -> Renewal:
        """Copies files that were replaced. `restart`: ZooKeeper trusts the new authorities only after a restart. Blocks for a moment. Raises
        `OSError` if the directory cannot be written; the next call repeats it."""
        found = self._certificates.current()
        if found == self._served:
            return "unchanged"
        self._write(found)
        before, self._served = self._served, found
        return "renewed" if found.authorities == before.authorities else "restart"

    def _write(self, found: Pem) -> None:
        write_private(self.authorities, _trusted(found.authorities))
        write_private(self.identity, found.key + b"\n" + found.certificate)


def _trusted(authorities: bytes) -> bytes:
    """A trust store for Java. Raises `ModuleNotFoundError` where the package cryptography is not installed."""
    with explain_missing("ZooKeeper with certificates", "server"):
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    found = x509.load_pem_x509_certificates(authorities)
    named = [pkcs12.PKCS12Certificate(each, b"authority-%d" % number) for number, each in enumerate(found)]
    return pkcs12.serialize_java_truststore(named, BestAvailableEncryption(PASSWORD.encode()))
