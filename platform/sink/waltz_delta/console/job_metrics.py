"""Reads what jobs publish of their pipelines: the text format of Prometheus, in a file, at an http address of this machine, or at an https address.

Blocks. Over HTTPS the console presents its certificate, and the job must have one of a trusted authority that names the address, with the role of an
application or operator. Requests use no proxy and follow no redirection, so the certificate is presented to the configured jobs alone.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.message import Message
from functools import partial
from pathlib import Path
from typing import IO, Any  # Any: options of http.client
from urllib.parse import urlsplit

from waltz_log.errors import InvalidSetting
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import Role, named_principal
from waltz_log.security.settings import TlsSettings, chosen_tls, is_loopback
from waltz_log.untrusted_files import METRICS, read_bytes

__all__ = ["JobMetrics"]

BYTES_MAX = 4 * 1024 * 1024
JOB_ROLES = {Role.APPLICATION, Role.OPERATOR}
TIMEOUT_S = 1.0
FILE_OLD_S = 30.0
"""A job writes its file every five seconds. What an old one says is not of now."""

_LINE = re.compile(r"^(waltz_pipeline_\w+)\{([^}]*)\}\s+(\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Figures = Mapping[str, Mapping[str, float]]
"""By metric without its prefix, or `phase_seconds <phase>`."""


class JobMetrics:
    """`tls`: the console's files; None for those that the environment names, if any.

    Raises `InvalidSetting` for an address that is neither of this machine nor HTTPS, for HTTPS without files, and for files that cannot be used."""

    def __init__(self, addresses: Sequence[str], tls: TlsSettings | None) -> None:
        self.addresses = tuple(addresses)
        self._certificates: Certificates | None = None
        if "https" in [_scheme(each) for each in addresses]:
            files = chosen_tls(tls)
            if files is None:
                needed = "set the block tls, or WALTZ_TLS_CERTIFICATE, WALTZ_TLS_KEY and WALTZ_TLS_AUTHORITIES"
                raise InvalidSetting(name="pipeline_metrics", reason=f"an https address needs the console's certificate: {needed}", nearest=None)
            self._certificates = Certificates(files)

    def read(self) -> tuple[dict[str, dict[str, float]], list[str]]:
        """By pipeline its figures, and what could not be read."""
        found: dict[str, dict[str, float]] = {}
        problems: list[str] = []
        for address in self.addresses:
            try:
                text = _read(address, self._certificates)
            except (OSError, ValueError) as error:
                problems.append(f"{address}: {getattr(error, 'strerror', None) or error}")
                continue
            for name, labels, value in _LINE.findall(text):
                given = dict(_LABEL.findall(labels))
                key = name.removeprefix("waltz_pipeline_") + (f" {given['phase']}" if "phase" in given else "")
                if "partition" not in given and "le" not in given:
                    found.setdefault(given.get("pipeline", ""), {})[key] = float(value)
        return found, problems


def _scheme(address: str) -> str:
    """Empty for a file. Raises `InvalidSetting` for an address that cannot be right."""
    if "://" not in address:
        return ""
    scheme = host = ""
    with suppress(ValueError):
        scheme, host = urlsplit(address).scheme, urlsplit(address).hostname or ""
    if not host or scheme not in ("http", "https") or (scheme == "http" and not is_loopback(f"{host}:0")):
        reason = f"must be a file, an http address of the loopback, or an https address, got {address!r}"
        raise InvalidSetting(name="pipeline_metrics", reason=reason, nearest=None)
    return scheme


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str) -> None:
        return None


class _JobHandler(urllib.request.HTTPSHandler):
    """Sends a request only to a peer that may be a job."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(context=certificates.client_context())
        self._certificates = certificates

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_JobConnection, self._certificates), req, context=self._certificates.client_context())


class _JobConnection(http.client.HTTPSConnection):
    def __init__(self, certificates: Certificates, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._certificates = certificates

    def connect(self) -> None:
        super().connect()
        peer = self._certificates.identify_connection(self.sock if isinstance(self.sock, ssl.SSLSocket) else None)
        if peer is None or not peer.roles & JOB_ROLES:
            self.close()
            found = named_principal(peer) or "a peer without a name"
            raise OSError(f"{found} answers there, which is neither an application nor an operator")


def _read(address: str, certificates: Certificates | None) -> str:
    if "://" not in address:
        age_s = time.time() - Path(address).stat().st_mtime
        if age_s > FILE_OLD_S:
            raise ValueError(f"the file is {age_s:.0f} s old: its job has ended, or it hangs")
        return read_bytes(Path(address), METRICS).decode(errors="replace")
    handlers = [urllib.request.ProxyHandler({}), _NoRedirection()]
    if certificates is not None:
        handlers.append(_JobHandler(certificates))
    with urllib.request.build_opener(*handlers).open(address, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read(BYTES_MAX)
        return body.decode(errors="replace")
