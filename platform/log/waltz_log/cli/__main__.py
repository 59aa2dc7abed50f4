"""The entry of the `waltz` command, also `python -m waltz_log.cli`: it starts `main`, or says which extra the command line needs.

The base install brings no command line. Without it, this module ends with one sentence on stderr, not with a traceback.
"""

from __future__ import annotations

import sys

from waltz_log.exit_codes import USAGE
from waltz_log.extras import missing_package

__all__ = ["main"]


def main() -> None:
    try:
        from waltz_log.cli import main as command
    except ModuleNotFoundError as error:
        reason = missing_package(error)
        if reason is None:
            raise
        print(f"waltz: the command line needs {reason}", file=sys.stderr)
        sys.exit(USAGE)
    command.main()


if __name__ == "__main__":
    main()
