"""Reads what jobs publish of their pipelines: the text format of Prometheus, in a file, at an http address of this machine, or at an https address.

Blocks. Over HTTPS the console presents its certificate, and the job must have one of a trusted authority that names the address. Requests use no
proxy and follow no redirection, so the certificate is presented to the configured jobs alone.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.message import Message
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from waltz_log.errors import InvalidSetting
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, chosen_tls, is_loopback

__all__ = ["JobMetrics"]

BYTES_MAX = 4 * 1024 * 1024
TIMEOUT_S = 1.0
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
                problems.append(f"{address}: {error}")
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
        reason = f"wants a file, an http address of the loopback, or an https address, got {address!r}"
        raise InvalidSetting(name="pipeline_metrics", reason=reason, nearest=None)
    return scheme


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str) -> None:
        return None


def _read(address: str, certificates: Certificates | None) -> str:
    if "://" not in address:
        with Path(address).open("rb") as file:
            return file.read(BYTES_MAX).decode(errors="replace")
    handlers = [urllib.request.ProxyHandler({}), _NoRedirection()]
    if certificates is not None:
        handlers.append(urllib.request.HTTPSHandler(context=certificates.client_context()))
    with urllib.request.build_opener(*handlers).open(address, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read(BYTES_MAX)
        return body.decode(errors="replace")
