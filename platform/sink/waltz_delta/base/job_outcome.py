"""The outcome of a job: an exit code and one line. It finds our errors also inside the exceptions that Spark wraps them in between processes.

Exit codes are those of `waltz`: 0 done or stopped as asked, 1 any other error (or a check that found something), 2 wrong arguments or a table that
does not fit, 3 no server answers (start it again), 4 the checkpoint is ahead of the table, 6 the machine lacks a jar, a module or the
right to run native code.
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
from waltz_log.exit_codes import FAILED, LACKING, OK, REFUSED, USAGE
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
_LACKING = (
    (
        r"snappy|UnsatisfiedLinkError|failed to map segment|FAILED_TO_LOAD_NATIVE_LIBRARY",
        "a library cannot run its native code; if /tmp is mounted noexec, add -Djava.io.tmpdir=DIRECTORY to spark.driver.extraJavaOptions",
    ),
    (
        r"NoClassDefFoundError|ClassNotFoundException|NoSuchMethodError|does not exist in the JVM|is not a package|'JavaPackage' object",
        "a class is missing, or of another version; run make setup, and name conf/spark-defaults.conf with --properties-file",
    ),
    (
        r"ModuleNotFoundError|PYTHON_VERSION_MISMATCH",
        "Spark runs another Python than the one with the packages; set spark.pyspark.python and spark.pyspark.driver.python to that one",
    ),
)
"""What a machine lacks, by what the cause says, and what to do. No restart helps. The first that fits: a library that did not load is a missing class
the next time."""
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b.*$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_CALL = "An error occurred while calling"
_CALLED = re.compile(r"^: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Failure:
    code: int
    line: str
    final: bool
    """A restart cannot help: a setting, a table or a checkpoint must be changed first."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        kind, line = (type(error), str(error)) if isinstance(error, WaltzError) else _from_spark(_text(error))
        if kind is None:
            advice = next((advice for signs, advice in _LACKING if re.search(signs, line)), None)
            return cls(FAILED, line, False) if advice is None else cls(LACKING, f"{line}; {advice}", True)
        return cls(kind.exit_code, line, kind.exit_code in (USAGE, REFUSED) or issubclass(kind, _PERMANENT))


def _text(error: BaseException) -> str:
    """What it says, with its class where that says more: `ModuleNotFoundError` and errors of Java's classes. Spark's exceptions keep their causes in
    the Java stack, which their text leaves out by default."""
    said = str(error)
    if "Caused by: " not in said:
        said = "\n".join([said, *(f"Caused by: {cause}" for cause in _JAVA_CAUSE.findall(str(getattr(error, "_stackTrace", ""))))])
    return f"{type(error).__name__}: {said}" if isinstance(error, TypeError) else said


def _from_spark(text: str) -> tuple[type[WaltzError] | None, str]:
    """The innermost of our errors, which comes last, and its message; otherwise None and the cause."""
    found = _PRINTED.findall(text)
    if not found:
        return None, _cause(text)
    name, line = found[-1]
    return _CLASSES.get(name), line


def _cause(text: str) -> str:
    """One line that says why: Spark's first line with the last cause of a Java stack, unless that line is empty of content. Then only the cause: the
    last error of a Python traceback, or the last cause of a Java one."""
    first = text.strip().split("\n")[0]
    if "Traceback (most recent call last)" in text:
        below = text.rpartition("Traceback (most recent call last)")[2]
        python = _PYTHON_ERROR.findall(below)
        if python and not python[-1].startswith(("py4j.protocol.Py4JJavaError", "py4j.Py4JException")):
            return str(python[-1])
    causes = _JAVA_CAUSE.findall(text) or (_CALLED.findall(text) if _CALL in first else [])
    if causes and ("Traceback" in first or _CALL in first or any(re.search(signs, causes[-1]) for signs, _ in _LACKING)):
        return str(causes[-1])
    if causes and causes[-1].partition(": ")[2] not in first:
        return f"{first}; caused by {causes[-1]}"
    return first


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
