"""Writes the generated pages of docs/reference: `make reference`. A test compares each page with what would be written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools import (
    reference_api,
    reference_commands,
    reference_errors,
    reference_events,
    reference_figures,
    reference_machines,
    reference_metrics,
    reference_settings,
)

PAGES: dict[Path, Callable[[], str]] = {
    **{
        module.PAGE: module.page
        for module in (reference_settings, reference_commands, reference_errors, reference_events, reference_machines, reference_metrics)
    },
    **{page.path: page.text for page in reference_api.PAGES},
    **{path: partial(reference_figures.page, path) for path in (*reference_figures.PAGES, *reference_figures.INLINE_PAGES)},
}


def main() -> None:
    for path, text in PAGES.items():
        path.write_text(text())


if __name__ == "__main__":
    main()
