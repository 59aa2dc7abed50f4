"""The outcome of a job: an exit code and one line. It finds our errors also inside the exceptions that Spark wraps them in between processes.

Exit codes are those of `waltz`: 0 done or stopped as asked, 1 any other error (or a check that found something), 2 wrong arguments or a table that
does not fit, 3 no server answers (start it again), 4 the checkpoint is ahead of the table.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyspark_waltz.errors
import waltz_delta.errors
import waltz_log.errors
from pyspark_waltz.errors import DataLost
from waltz_delta.errors import KeyMoved, Undecodable, UnsupportedDelta
from waltz_log.errors import WaltzError
from waltz_log.exit_codes import FAILED, OK, REFUSED, USAGE
from waltz_log.outside_text import printable

__all__ = ["Failure", "run_job"]

_MODULES = (waltz_log.errors, pyspark_waltz.errors, waltz_delta.errors)
_CLASSES: dict[str, type[WaltzError]] = {
    f"{module.__name__}.{name}": found
    for module in _MODULES
    for name in module.__all__
    if isinstance(found := getattr(module, name), type) and issubclass(found, WaltzError)
}
"""By the name that a Python traceback prints: Spark passes the errors of its Python processes on as text."""
_PRINTED = re.compile(r"((?:waltz_log|waltz_delta|pyspark_waltz)\.errors\.\w+): ([^\n]*)")
_PERMANENT = (DataLost, KeyMoved, Undecodable, UnsupportedDelta)
"""Exit code 1, and a restart does not help."""


@dataclass(frozen=True, slots=True)
class Failure:
    code: int
    line: str
    final: bool
    """A restart cannot help: a setting, a table or a checkpoint must be changed first."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        kind, line = (type(error), str(error)) if isinstance(error, WaltzError) else _from_spark(str(error))
        if kind is None:
            return cls(FAILED, line, False)
        return cls(kind.exit_code, line, kind.exit_code in (USAGE, REFUSED) or issubclass(kind, _PERMANENT))


def _from_spark(text: str) -> tuple[type[WaltzError] | None, str]:
    """The innermost of our errors, which comes last, and its message; otherwise None and Spark's first line."""
    found = _PRINTED.findall(text)
    if not found:
        return None, text.strip().split("\n")[0]
    name, line = found[-1]
    return _CLASSES.get(name), line


def run_job(name: str, arguments: Sequence[str], run: Callable[[Sequence[str]], int | None]) -> int:
    """Runs the job and returns its exit code. Prints an error as one line on stderr, and with `--verbose` its traceback."""
    try:
        return run(arguments) or OK
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        failure = Failure.of(error)
        print(printable(f"{name}: {failure.line}"), file=sys.stderr, flush=True)
        if "--verbose" in arguments:
            traceback.print_exc()
        return failure.code
