"""`waltz console`: reads its settings and serves until a signal."""

from __future__ import annotations

import os
from pathlib import Path

from waltz_log.cli.profiles import default_address, missing_address
from waltz_log.console.settings import ConsoleSettings

__all__ = ["run"]


def run(config: Path | None, **arguments: object) -> None:
    """Raises `InvalidSetting`, and `OSError` if it cannot listen."""
    given: dict[str, object] = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    if given.get("cluster") is None and "cluster" not in ConsoleSettings.given(config, prefix="WALTZ_CONSOLE", environment=os.environ):
        given["cluster"] = default_address("cluster", os.environ)
        if given["cluster"] is None:
            raise missing_address("cluster", os.environ)
    settings = ConsoleSettings.load(config, prefix="WALTZ_CONSOLE", environment=os.environ, **given)
    from waltz_log.console.serving import run as serve

    serve(settings)
