"""Writes the generated pages of docs/reference: `make reference`. A test compares each page with what would be written."""

from __future__ import annotations

from tools import reference_commands, reference_errors, reference_events, reference_settings

MODULES = (reference_settings, reference_commands, reference_errors, reference_events)


def main() -> None:
    for module in MODULES:
        module.PAGE.write_text(module.page())


if __name__ == "__main__":
    main()
