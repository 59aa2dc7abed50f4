"""Pages from other packages: an entry point in the group `waltz.console` names a function that creates them,
`delta = "waltz_delta.console.extension:make_extension"`.

This package does not import them. If the requirements of such a package are not installed, its pages are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from waltz_log.console.console import Extension
from waltz_log.console.settings import ConsoleSettings
from waltz_log.extras import missing_package
from waltz_log.loggers import get_logger

__all__ = ["GROUP", "load_extensions"]

log = get_logger(__name__)

GROUP = "waltz.console"


MakeExtension = Callable[[ConsoleSettings], Extension | None]
"""Returns None if the settings ask for none of its pages."""


def load_extensions(settings: ConsoleSettings) -> list[Extension]:
    """Raises `InvalidSetting` for wrong settings of an extension."""
    found: list[Extension] = []
    for declared in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            make: MakeExtension = declared.load()
            extension = make(settings)
        except ImportError as error:
            log.info("pages left out", extension=declared.name, needs=missing_package(error) or str(error))
            continue
        if extension is not None:
            found.append(extension)
    return found
