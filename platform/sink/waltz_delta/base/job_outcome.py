"""The outcome of a job: an exit code and one line. It finds our errors also inside the exceptions that Spark wraps them in between processes.

Exit codes are those of `waltz`: 0 done or stopped as asked, 1 any other error (or a check that found something), 2 wrong arguments or a table that
does not fit, 3 no server answers (start it again), 4 the checkpoint is ahead of the table, 5 a disk of this machine is full, 6 the machine lacks a
jar, a module or the right to run native code.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyspark_waltz.errors
import waltz_delta.errors
import waltz_log.errors
from pyspark_waltz.errors import DataLost
from waltz_delta.errors import KeyMoved, StoreUnavailable, Undecodable, UnsupportedDelta
from waltz_log.errors import WaltzError
from waltz_log.exit_codes import FAILED, LACKING, MACHINE, OK, REFUSED, USAGE
from waltz_log.outside_text import printable

__all__ = ["Failure", "brief_errors", "run_job"]

LINE_MAX = 2000
"""Characters of an error that Spark gets from a batch."""

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
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_LACKING = (
    ("S3DynamoDBLogStore", "start Spark with --packages io.delta:delta-storage-s3-dynamodb:VERSION, that of Delta"),
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
_PERMANENT_STATES = re.compile(r"SQLSTATE: (?!42K03|42P01|42704)(?:21|22|23|42)\w{3}\b")
"""Spark evaluates the same rows by the same plan again and fails again: wrong data (a division by zero, a constraint), or a plan that cannot be
analyzed. Not a table or a path that is missing: the next start finds out why it is."""
_PERMANENT_CONDITIONS = re.compile(
    r"\[DELTA_(?:VIOLATE_|NOT_NULL_|EXCEED_CHAR_VARCHAR_LIMIT|CANNOT_MODIFY_APPEND_ONLY|INVALID_CHARACTERS_IN_COLUMN_NAME|DUPLICATE_COLUMNS)\w*[\].]"
)
"""The same, of errors whose text lacks the state."""
_BUSY = re.compile(r"Python worker failed to connect back|Timed out while waiting for the Python worker to connect")
_NOT_STARTED = "the machine is too busy to start Python workers, or spark.pyspark.python names no Python that starts"
_WORKER_ENDED = re.compile(r"Python worker exited unexpectedly")
_NO_REASON = re.compile(r"terminated with exception:\s*SQLSTATE: XXKST")
_PLANNER = re.compile(r"PythonStreaming(?:Source|Sink)|PythonPlannerRunner|PythonMicroBatchStream")
_PLANNER_ENDED = "the Python process that plans the batches of the source has ended: killed, or out of memory"
_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^\S.*$", re.MULTILINE)
"""The first line of a traceback that is not indented."""
_JAVA_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_INTERRUPTION = re.compile(r"java\.(?:lang\.InterruptedException|io\.InterruptedIOException|nio\.channels\.ClosedByInterruptException)")
_CALL = "An error occurred while calling"
_CALLED = re.compile(r"^: (.+(?:\n - .+)*)$", re.MULTILINE)
"""With the values that violate a constraint, which come in lines of their own."""


@dataclass(frozen=True, slots=True)
class Failure:
    code: int
    line: str
    final: bool
    """A restart cannot help: a setting, a table, the data or a checkpoint must be changed first."""
    counts: bool = True
    """Whether it uses up one of the restarts that the settings allow."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        text = _text(error)
        kind, line = (type(error), str(error)) if isinstance(error, WaltzError) else _from_spark(text)
        if kind is not None:
            code = MACHINE if issubclass(kind, StoreUnavailable) and _FULL.search(line) else kind.exit_code
            return cls(code, line, code in (USAGE, REFUSED) or issubclass(kind, _PERMANENT))
        if _BUSY.search(text):
            return cls(FAILED, f"{line}; {_NOT_STARTED}", False, counts=False)
        if _NO_REASON.search(text):
            stack = str(getattr(error, "_stackTrace", ""))
            ended = f"{_PLANNER_ENDED}; " if _PLANNER.search(stack) else ""
            return cls(FAILED, f"{ended}{(_JAVA_CAUSE.findall(stack) or [line])[-1]}", False)
        advice = next((advice for signs, advice in _LACKING if re.search(signs, line)), None)
        if advice is not None:
            return cls(LACKING, f"{line}; {advice}", True)
        return cls(FAILED, line, any(signs.search(text) for signs in (_PERMANENT_STATES, _PERMANENT_CONDITIONS)))


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
    error of the last Python traceback, or the last cause of a Java one."""
    if ended := _WORKER_ENDED.search(text):  # its cause is a connection that was reset
        return f"{ended[0]}: killed, or out of memory"
    first = text.strip().split("\n")[0]
    python = _PYTHON_ERROR.search(text.rpartition(_TRACEBACK)[2].lstrip("\n")) if _TRACEBACK in text else None
    if python and not python[0].startswith(("py4j.protocol.Py4JJavaError", "py4j.Py4JException")):
        return python[0]
    causes = _JAVA_CAUSE.findall(text) or (_CALLED.findall(text) if _CALL in text else [])
    if causes and (_TRACEBACK in first or _CALL in first or any(re.search(signs, causes[-1]) for signs, _ in _LACKING)):
        return re.sub(r"\n - ", " ", str(causes[-1]))
    first = first.partition("Return Message:")[0].strip() or first
    if causes and causes[-1].partition(": ")[2] not in first:
        return f"{first}; caused by {causes[-1]}"
    return first


@contextmanager
def brief_errors(failed: Callable[[Exception], None] = lambda error: None) -> Iterator[None]:
    """Within `foreachBatch`: an error leaves as one line. Spark searches its text for an interruption (`isInterruptionException`), by a regular
    expression that overflows the stack of the JVM on the kilobytes of a Java trace. The text of an interruption is just what Spark searches for.
    `failed` gets the error itself."""
    try:
        yield
    except WaltzError as error:
        failed(error)
        raise error from None
    except Exception as error:
        failed(error)
        interruption = _INTERRUPTION.search(str(error))
        line = Failure.of(error).line[:LINE_MAX] if interruption is None else f"py4j.protocol.Py4JJavaError: {_CALL} a batch\n: {interruption[0]}"
        raise RuntimeError(line) from None


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
