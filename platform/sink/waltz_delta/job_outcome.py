"""What became of a job: an exit code and one line, also for our errors inside what Spark made of them on their way through processes.

Exit codes are those of `waltz`: 0 done or stopped as asked, 1 anything else (or a check that found something), 2 wrong arguments or a table that does
not fit, 3 nobody answers (start it again), 4 the checkpoint is ahead of the table.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import waltz_log.errors
from waltz_log.cli.exit_codes import FAILED, OK, REFUSED, UNAVAILABLE, USAGE, exit_code_of
from waltz_log.errors import WaltzError

__all__ = ["Failure", "run_job"]

_CODES = {
    "NotADeltaTable": USAGE,
    "SchemaMismatch": USAGE,
    "UnsafeTable": USAGE,
    "GapInTable": REFUSED,
    "TableReplaced": REFUSED,
    "TableRestored": REFUSED,
    "RestoreOvertaken": REFUSED,
    "WriteContended": UNAVAILABLE,
    "RangeUnreadable": UNAVAILABLE,
}
_TOLD = re.compile(r"(?:waltz_log|waltz_delta|pyspark_waltz)\.errors\.(\w+): ([^\n]*)")
_LOST = frozenset({"DataLost", "KeyMoved", "Undecodable", "UnsupportedDelta"})
"""None of them passes by itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    code: int
    line: str
    final: bool
    """Starting again cannot help: a setting, a table or a checkpoint must be changed first."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        if isinstance(error, WaltzError):
            name, line = type(error).__name__, str(error)
            code = _CODES.get(name) or exit_code_of(error)
        else:
            name, code, line = _from_spark(str(error))
        return cls(code, line, code in (USAGE, REFUSED) or name in _LOST)


def _from_spark(text: str) -> tuple[str, int, str]:
    """The innermost of our errors, which comes last; otherwise Spark's first line."""
    found = _TOLD.findall(text)
    if not found:
        return "", FAILED, text.strip().split("\n")[0]
    name, line = found[-1]
    if name in _CODES:
        return name, _CODES[name], line
    kind = getattr(waltz_log.errors, name, None)
    return name, (exit_code_of(kind.__new__(kind)) if kind is not None else FAILED), line


def run_job(name: str, arguments: Sequence[str], run: Callable[[Sequence[str]], int | None]) -> int:
    """The exit code; errors are told in one line on stderr, and whole with `--verbose`."""
    try:
        return run(arguments) or OK
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        failure = Failure.of(error)
        print(f"{name}: {failure.line}", file=sys.stderr, flush=True)
        if "--verbose" in arguments:
            traceback.print_exc()
        return failure.code
