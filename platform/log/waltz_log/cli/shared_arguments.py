"""Arguments that several commands share, and the names of the formats in which commands print (`printing`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waltz_log.errors import InvalidSetting

__all__ = [
    "Config",
    "Coordinator",
    "CoordinatorOption",
    "DryRun",
    "Every",
    "LogLevel",
    "Output",
    "Servers",
    "Timeout",
    "Watch",
    "checked_every",
    "checked_output",
]

Coordinator = Annotated[str, typer.Argument(help="Address of the coordinator: host:port[,host:port]/path.")]
CoordinatorOption = Annotated[str | None, typer.Option("--coordinator", help="Address of the coordinator: host:port[,host:port]/path.")]
Servers = Annotated[str, typer.Argument(metavar="CLUSTER", help="Log servers of the cluster: host:port[,host:port].")]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="Settings in YAML. The environment and the options here override it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]
Every = Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two rounds of --watch.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error. Also WALTZ_LOG_LEVEL.")]
Output = Annotated[str, typer.Option("--output", "-o", help="table, json or yaml.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat the command until Ctrl-C.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the cluster's answer.")]


OUTPUTS = ("table", "json", "yaml")


def checked_output(chosen: str) -> str:
    """Raises `InvalidSetting` if it is none of them."""
    if chosen not in OUTPUTS:
        near = InvalidSetting.unknown(chosen, OUTPUTS).nearest
        raise InvalidSetting(name="--output", reason=f"is table, json or yaml, not {chosen!r}", nearest=near)
    return chosen


def checked_every(watch: bool, every_s: float) -> float | None:
    """The pause of `--watch`; None without it."""
    return every_s if watch else None
