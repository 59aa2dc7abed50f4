"""The certificate files of one process: checked at start, reread when they change, and kept when the new ones are unusable.

A rotation replaces two files, so a read in between finds a pair that does not fit. Such a pair is read again at the next check, and is reported if it
has not changed by then. Connections that are open keep the certificate that they began with.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final  # Any: ssl's connection: a socket or an object
from weakref import WeakSet

from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger
from waltz_log.security.identity import Identity, Role, identify
from waltz_log.security.own_certificate import OwnCertificate, read_certificate
from waltz_log.security.settings import TlsSettings
from waltz_log.untrusted_files import AUTHORITIES, CERTIFICATE, KEY, read_bytes

__all__ = ["Certificates", "Pem", "earliest_expiry_s", "subject_of"]

log = get_logger(__name__)

CHECK_S: Final = 0.5
"""Between two reads of the files' times. A revoked authority must be out within a second."""

DAY_S: Final = 86_400
EXPIRES_SOON_S: Final = 14 * DAY_S
"""A certificate that expires within this time is reported at start and after each reload: time enough for a person to act."""

_Stamp = tuple[tuple[int, int, int], ...]

_KINDS: Final = {"certificate": CERTIFICATE, "key": KEY, "authorities": AUTHORITIES}


@dataclass(frozen=True, slots=True, repr=False)
class Pem:
    """The contents of the three files. `own`: what the certificate says; None if the package cryptography, which reads it, is not installed. The
    representation leaves the key out."""

    certificate: bytes
    key: bytes
    authorities: bytes
    own: OwnCertificate | None

    @property
    def expires_s(self) -> float | None:
        """When the certificate expires, seconds since 1970; None if that is not known."""
        return None if self.own is None else self.own.expires_s


@dataclass(frozen=True, slots=True)
class _Loaded:
    pem: Pem
    server: ssl.SSLContext
    client: ssl.SSLContext
    public: ssl.SSLContext
    """For servers whose clients may be without a certificate."""
    peer: ssl.SSLContext
    """For a client of a server of gRPC, which accepts no handshake that does not offer HTTP/2."""
    principal: str | None
    """The name of this process in its own certificate; None if it has none, or it is not known."""


class Certificates:
    """The certificates of one process. `version` rises with each change that is in use. Threads of gRPC and the event loop share it.

    Raises `InvalidSetting`, with the file and the remedy, if the files cannot be used at start.
    """

    def __init__(self, settings: TlsSettings, *, now_s: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._now_s = now_s
        self._lock = threading.Lock()
        self._checked_s = time.monotonic()
        self._suspect: _Stamp | None = None
        self._reported: _Stamp | None = None
        self._patterns = {
            Role.NODE: settings.nodes,
            Role.OPERATOR: settings.operators,
            Role.APPLICATION: settings.applications,
            Role.READER: settings.readers,
        }
        self._stamp = self._stamp_now()
        self._loaded = self._read()
        self.version = 1
        self._report_expiry()
        _in_use.add(self)

    # ---- what connections need -------------------------------------------------------------------------------------------------------------------

    def current(self) -> Pem:
        """The newest usable files."""
        self._refresh()
        return self._loaded.pem

    def server_context(self) -> ssl.SSLContext:
        """For a server of asyncio. Each handshake uses the newest files."""

        def renew(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            self._refresh()
            connection.context = self._loaded.server

        context = _context(self.settings, ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = renew  # called for each handshake, whether the client names a server or not
        return context

    def public_context(self) -> ssl.SSLContext:
        """For one connection of a server that also answers clients without a certificate, such as probes. One that is presented must be of a trusted
        authority."""
        self._refresh()
        return self._loaded.public

    def mutual_context(self) -> ssl.SSLContext:
        """For one connection of a server whose clients all present a certificate of a trusted authority."""
        self._refresh()
        return self._loaded.server

    def client_context(self) -> ssl.SSLContext:
        """For one connection to a server. The server's certificate must name the host that the connection goes to."""
        self._refresh()
        return self._loaded.client

    def peer_context(self) -> ssl.SSLContext:
        """For one connection to a server of gRPC, otherwise like `client_context`."""
        self._refresh()
        return self._loaded.peer

    @property
    def principal(self) -> str | None:
        """The name of this process in its own certificate. It never changes: a new certificate with another name is refused."""
        return self._loaded.principal

    def identify(self, uris: Sequence[str], dns_names: Sequence[str]) -> Identity | None:
        """The peer with these subject alternative names, with its roles according to the settings."""
        return identify(uris, dns_names, self._patterns)

    def identify_connection(self, ssl_object: ssl.SSLObject | ssl.SSLSocket | None) -> Identity | None:
        """The peer of a connection of asyncio, or of a socket."""
        names = ((ssl_object.getpeercert() or {}) if ssl_object is not None else {}).get("subjectAltName", ())
        pairs = [(str(each[0]), str(each[1])) for each in names if isinstance(each, tuple)]
        return self.identify([value for kind, value in pairs if kind == "URI"], [value for kind, value in pairs if kind == "DNS"])

    # ---- the files -------------------------------------------------------------------------------------------------------------------------------

    @property
    def _paths(self) -> tuple[Path, Path, Path]:
        return self.settings.certificate, self.settings.key, self.settings.authorities

    def _stamp_now(self) -> _Stamp:
        """The identities and times of the files, which change when a file is replaced or written. Missing files have zeros."""
        found = []
        for path in self._paths:
            try:
                status = os.stat(path)
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._checked_s < CHECK_S:
                return
            self._checked_s = time.monotonic()
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return
            try:
                loaded = self._read()
                self._expect_same_name(loaded)
            except InvalidSetting as error:
                if stamp == self._suspect and stamp != self._reported:
                    self._reported = stamp
                    log.error("new certificate refused, the previous one stays in use", reason=str(error))
                self._suspect = stamp
                return
            if stamp != self._stamp_now():
                return  # replaced while it was read: the next check reads it
            self._stamp, self._loaded, self._suspect = stamp, loaded, None
            self.version += 1
        log.info("certificate reloaded", certificate=str(self.settings.certificate))
        self._report_expiry()

    def _read(self) -> _Loaded:
        certificate, key, authorities = (
            self._contents(name, path) for name, path in zip(("certificate", "key", "authorities"), self._paths, strict=True)
        )
        contexts = self._contexts()
        own = read_certificate(certificate, self.settings.certificate, self._now_s())
        named = None if own is None else self.identify(own.uris, own.dns_names)
        return _Loaded(Pem(certificate, key, authorities, own), *contexts, None if named is None else named.principal)

    def _expect_same_name(self, loaded: _Loaded) -> None:
        """Peers expect the name that this process announced, and ZooKeeper its rights, until it ends."""
        if loaded.principal != self._loaded.principal:
            reason = (
                f"{self.settings.certificate} is now of {loaded.principal or 'no principal'}, and this process began as "
                f"{self._loaded.principal or 'no principal'}: restart it to give it another name"
            )
            raise InvalidSetting(name="tls.certificate", reason=reason, nearest=None)

    def _contents(self, name: str, path: Path) -> bytes:
        try:
            return read_bytes(path, _KINDS[name])
        except OSError as error:
            raise InvalidSetting(name=f"tls.{name}", reason=f"{path} cannot be read: {error.strerror}", nearest=None) from None

    def _contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext, ssl.SSLContext]:
        """Raises `InvalidSetting` with the reason why a connection could not use the files."""
        files = self.settings
        try:
            server, public = _context(files, ssl.PROTOCOL_TLS_SERVER), _context(files, ssl.PROTOCOL_TLS_SERVER)
            client, peer = _context(files, ssl.PROTOCOL_TLS_CLIENT), _context(files, ssl.PROTOCOL_TLS_CLIENT)
            public.verify_mode = ssl.CERT_OPTIONAL
            peer.set_alpn_protocols(["h2"])
            return server, client, public, peer
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                reason = f"{files.key} is not the key of {files.certificate}: name the two files that were made together"
                raise InvalidSetting(name="tls.key", reason=reason, nearest=None) from None
            none = error.reason in ("NO_CERTIFICATE_OR_CRL_FOUND", "NO_START_LINE")
            if none and b"BEGIN CERTIFICATE" not in self._contents("authorities", files.authorities):
                raise InvalidSetting(name="tls.authorities", reason=f"{files.authorities} holds no certificate in PEM", nearest=None) from None
            reason = f"{files.certificate} and {files.key} are no certificate and key in PEM without a password: {error.reason}"
            raise InvalidSetting(name="tls.certificate", reason=reason, nearest=None) from None
        except OSError as error:
            raise InvalidSetting(name="tls", reason=f"a file cannot be read: {error}", nearest=None) from None

    def _report_expiry(self) -> None:
        expires_s = self._loaded.pem.expires_s
        if expires_s is not None and expires_s - self._now_s() < EXPIRES_SOON_S:
            days = round((expires_s - self._now_s()) / DAY_S, 1)
            log.warning("certificate expires soon", certificate=str(self.settings.certificate), days=days)


_in_use: WeakSet[Certificates] = WeakSet()


def earliest_expiry_s() -> float | None:
    """When the first of the certificates that this process uses now expires, seconds since 1970; None: it uses none, or cannot read the date."""
    return min((found for each in [*_in_use] if (found := each.current().expires_s) is not None), default=None)


def subject_of(files: TlsSettings) -> str | None:
    """The subject of the certificate, as RFC 4514 writes it. None where the package cryptography is not installed, as for some clients. Raises
    `InvalidSetting`."""
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        return None
    try:
        return x509.load_pem_x509_certificates(read_bytes(files.certificate, CERTIFICATE))[0].subject.rfc4514_string()
    except OSError as error:
        raise InvalidSetting(name="tls.certificate", reason=f"{files.certificate} cannot be read: {error.strerror}", nearest=None) from None
    except ValueError as error:
        raise InvalidSetting(name="tls.certificate", reason=f"{files.certificate} holds no certificate: {error}", nearest=None) from None


def _context(files: TlsSettings, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    context.load_verify_locations(files.authorities)
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # with one, a client would come back without another check of its certificate
    return context
