"""A certificate authority for development and tests: one key that signs certificates of nodes and clients.

It keeps its key next to its certificate, in a folder that only this user may enter. A person who reads that key can join the cluster, so a
production cluster uses certificates of the organization's authority. Keys are P-256 in PKCS#8, the one form that ZooKeeper reads too.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from waltz_log.errors import InvalidRequest
from waltz_log.security.identity import Role
from waltz_log.security.settings import TlsSettings
from waltz_log.untrusted_files import CERTIFICATE, KEY, PRIVATE, PUBLIC, make_private_directory, read_bytes, write_private

__all__ = ["DOMAIN", "LOCAL_HOSTS", "ZOOKEEPER", "DevelopmentAuthority"]

DOMAIN: Final = "waltz"
"""The trust domain in the names of certificates: `spiffe://waltz/ROLE/NAME`."""

ZOOKEEPER: Final = "zookeeper"
"""In the place of a role, in the names of ZooKeeper's certificates: `spiffe://waltz/zookeeper/NAME`. It has no role at any node."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")

AUTHORITY_DAYS: Final = 3650
BACKDATED: Final = datetime.timedelta(minutes=5)
"""How long before now a certificate is valid already, for peers whose clocks are behind."""


class DevelopmentAuthority:
    """In `directory`: `authority.pem`, `authority.key`, and two files for each certificate. Creates missing files and keeps existing ones. Raises
    `OSError` if the directory cannot be written, `InvalidRequest` if it holds files that are no authority."""

    def __init__(self, directory: Path, *, now: datetime.datetime | None = None) -> None:
        self.directory = directory.resolve()
        self._now = now or datetime.datetime.now(datetime.UTC)
        make_private_directory(self.directory)
        self.directory.chmod(0o700)
        if not self.certificate.exists():
            self._create()
        try:
            self._certificate = x509.load_pem_x509_certificate(read_bytes(self.certificate, CERTIFICATE))
            key = serialization.load_pem_private_key(read_bytes(self.directory / "authority.key", KEY), None)
        except (OSError, ValueError, TypeError) as error:
            raise InvalidRequest(reason=f"{self.directory} does not hold a whole authority ({error}); choose another directory") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidRequest(reason=f"{self.directory} holds an authority of another kind; choose another directory")
        self._key = key

    @property
    def certificate(self) -> Path:
        """What every peer trusts."""
        return self.directory / "authority.pem"

    def issue(self, role: Role | str, name: str, *, hosts: Sequence[str] = LOCAL_HOSTS, days: float = 365, serve: bool | None = None) -> TlsSettings:
        """A new certificate `spiffe://waltz/ROLE/NAME`. `hosts`: the host names and addresses at which a node is reached. `serve`: clients accept it
        as that of a server; None: if the role is that of a node or of ZooKeeper. Replaces the files of an earlier certificate of the same role and
        name."""
        serves = serve if serve is not None else role in (Role.NODE, ZOOKEEPER)
        usages = [*([ExtendedKeyUsageOID.SERVER_AUTH] if serves else []), ExtendedKeyUsageOID.CLIENT_AUTH]
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"spiffe://{DOMAIN}/{role}/{name}"), *(_host(each) for each in hosts)]
        builder = self._builder(str(role), key.public_key(), datetime.timedelta(days=days)).issuer_name(self._certificate.subject)
        certificate = (
            builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        paths = self._paths(role, name)
        write_private(paths[1], _pkcs8(key), PRIVATE)
        write_private(paths[0], certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)
        return TlsSettings(certificate=paths[0], key=paths[1], authorities=self.certificate)

    def find(self, role: Role | str, name: str) -> TlsSettings | None:
        """A certificate that was issued before; None if there is none."""
        certificate, key = self._paths(role, name)
        return TlsSettings(certificate=certificate, key=key, authorities=self.certificate) if certificate.exists() and key.exists() else None

    def _paths(self, role: Role | str, name: str) -> tuple[Path, Path]:
        return self.directory / f"{role}-{name}.pem", self.directory / f"{role}-{name}.key"

    def _create(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder("development authority", key.public_key(), datetime.timedelta(days=AUTHORITY_DAYS))
        certificate = (
            builder.issuer_name(_subject("development authority"))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=False,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(key, hashes.SHA256())
        )
        write_private(self.directory / "authority.key", _pkcs8(key), PRIVATE)
        write_private(self.certificate, certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)

    def _builder(self, subject: str, key: ec.EllipticCurvePublicKey, lifetime: datetime.timedelta) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_subject(subject))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(self._now, self._now + lifetime) - BACKDATED)
            .not_valid_after(self._now + lifetime)
        )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, DOMAIN), x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pkcs8(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
