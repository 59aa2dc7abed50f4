"""Reads what jobs publish of their pipelines: the text format of Prometheus, in a file or at an http address of this machine. Blocks."""

from __future__ import annotations

import ipaddress
import re
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from waltz_log.errors import InvalidSetting

__all__ = ["check_address", "read_metrics"]

BYTES_MAX = 4 * 1024 * 1024
TIMEOUT_S = 1.0
_LINE = re.compile(r"^(waltz_pipeline_\w+)\{([^}]*)\}\s+(\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Figures = Mapping[str, Mapping[str, float]]
"""By metric without its prefix, or `phase_seconds <phase>`."""


def check_address(address: str) -> None:
    """Raises `InvalidSetting` for an address that is not of this machine."""
    if "://" not in address:
        return
    parts = urlsplit(address)
    host = parts.hostname or ""
    try:
        fine = parts.scheme == "http" and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        fine = False
    if not fine:
        raise InvalidSetting(name="pipeline_metrics", reason=f"wants a file or an http address of the loopback, got {address!r}", nearest=None)


def read_metrics(addresses: Sequence[str]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """By pipeline its figures, and what could not be read."""
    found: dict[str, dict[str, float]] = {}
    problems: list[str] = []
    for address in addresses:
        try:
            text = _read(address)
        except (OSError, ValueError) as error:
            problems.append(f"{address}: {error}")
            continue
        for name, labels, value in _LINE.findall(text):
            given = dict(_LABEL.findall(labels))
            key = name.removeprefix("waltz_pipeline_") + (f" {given['phase']}" if "phase" in given else "")
            if "partition" not in given and "le" not in given:
                found.setdefault(given.get("pipeline", ""), {})[key] = float(value)
    return found, problems


def _read(address: str) -> str:
    if "://" not in address:
        with Path(address).open("rb") as file:
            return file.read(BYTES_MAX).decode(errors="replace")
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read(BYTES_MAX)
        return body.decode(errors="replace")
