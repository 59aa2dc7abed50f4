"""What every process shows of itself, whatever its role: its build and its clock."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version

from waltz_log.monitoring.families import Family, gauge, single

__all__ = ["BUILD"]


def _distribution_version() -> str:
    try:
        return version("waltz-platform")
    except PackageNotFoundError:  # run from the source without an installation
        return "unknown"


_VERSION = _distribution_version()

BUILD: tuple[Family[object], ...] = (
    gauge(
        "waltz_build_info",
        ("version", "python"),
        "1; the labels are the versions of the platform and of Python.",
        lambda _: [((_VERSION, platform.python_version()), 1)],
    ),
    gauge(
        "waltz_time_seconds",
        (),
        "The clock of the machine as the process reads it. Compare it with the time of the scrape to find a clock that is wrong.",
        single(lambda _: time.time()),
    ),
)
