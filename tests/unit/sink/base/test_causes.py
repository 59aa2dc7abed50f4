"""What a job says when the machine under it lacks something: the cause, what to do, and no second attempt."""

from __future__ import annotations

import re

import pytest

from waltz_delta.base.job_outcome import Failure, brief_errors
from waltz_delta.base.session import damaged_argument
from waltz_delta.errors import GapInTable
from waltz_delta.spark_version import unsupported
from waltz_log.exit_codes import LACKING

SNAPPY = """An error occurred while calling o55.start.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.x(x.scala:1)
Caused by: java.lang.UnsatisfiedLinkError: /tmp/snappy-1-libsnappyjava.so: failed to map segment from shared object
\tat java.base/x
"""
FOREACH = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Traceback (most recent call last):
  File "x.py", line 1, in call
    raise ValueError("no such column")
ValueError: no such column
 SQLSTATE: XXKST
=== Streaming Query ===
"""
WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
ModuleNotFoundError: No module named 'waltz_log'
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(SNAPPY), "java.lang.UnsatisfiedLinkError: /tmp/snappy-1-libsnappyjava.so: failed to map segment from shared object"),
        (RuntimeError("org.apache.spark.sql.delta.DeltaLog.forTable does not exist in the JVM"), "DeltaLog.forTable does not exist in the JVM"),
        (
            RuntimeError("An error occurred while calling o1.x.\n: java.lang.NoClassDefFoundError: io/delta/X\n\tat y"),
            "NoClassDefFoundError: io/delta/X",
        ),
        (
            RuntimeError("An error occurred while calling o1.x.\n: java.lang.ClassNotFoundException: io.delta.storage.S3DynamoDBLogStore\n\tat y"),
            "java.lang.ClassNotFoundException: io.delta.storage.S3DynamoDBLogStore",
        ),
        (TypeError("'JavaPackage' object is not callable"), "'JavaPackage' object is not callable"),
        (RuntimeError(WORKER), "ModuleNotFoundError: No module named 'waltz_log'"),
    ],
)
def test_what_the_machine_lacks_ends_the_job_with_the_cause_and_what_to_do(error: Exception, line: str) -> None:
    found = Failure.of(error)
    assert (found.code, found.final) == (LACKING, True)
    assert line in found.line
    assert "; " in found.line.partition(line)[2], "what to do"
    assert "\n" not in found.line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FOREACH, "ValueError: no such column"),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'a'", "KeyError: 'a'"),
        ("An error occurred while calling o1.x.\n: java.io.IOException: disk\n\tat y", "java.io.IOException: disk"),
        ("[TABLE_NOT_FOUND] no table\nCaused by: java.io.IOException: disk", "[TABLE_NOT_FOUND] no table; caused by java.io.IOException: disk"),
        ("[STREAM_FAILED] terminated: disk\nCaused by: java.io.IOException: disk", "[STREAM_FAILED] terminated: disk"),
        ("[A] failed\nCaused by: java.io.IOException: outer\nCaused by: x.NoAuth: no credentials", "[A] failed; caused by x.NoAuth: no credentials"),
        ("plain", "plain"),
    ],
)
def test_the_line_names_the_cause_and_never_only_a_traceback(text: str, line: str) -> None:
    found = Failure.of(RuntimeError(text))
    assert found.line == line
    assert not found.final


class FailedQuery(Exception):
    """As pyspark's captured exceptions: their text has no Java stack."""

    _stackTrace = "org.apache.spark.X: failed\n\tat y\nCaused by: org.apache.hadoop.fs.s3a.NoAuthWithAWSException: No AWS Credentials\n\tat z\n"


def test_a_cause_that_only_the_java_stack_has_is_named_without_verbose() -> None:
    assert Failure.of(FailedQuery("[STREAM_FAILED] query failed")).line == (
        "[STREAM_FAILED] query failed; caused by org.apache.hadoop.fs.s3a.NoAuthWithAWSException: No AWS Credentials"
    )


PROXY = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user \
provided function in foreach batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "utils.py", line 1, in call
    raise e
{error}
 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: seats [id = 1, runId = 2]
"""
CALL = "py4j.protocol.Py4JJavaError: An error occurred while calling o426.write.\n: "
CHECK = "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException: [DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint few (legs < 5) "
TOO_LONG = 'org.apache.spark.sql.delta.schema.DeltaInvariantViolationException: [DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "abcd" exceeds char/varchar'


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (f"{CALL}{CHECK}violated by row with values:\n - legs : 9\n - n : 1\n\tat org.x", f"{CHECK}violated by row with values: legs : 9 n : 1"),
        ("strange.Thing: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "strange.Thing: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"),
        ("[UNRESOLVED_COLUMN] `x`. SQLSTATE: 42703", "[UNRESOLVED_COLUMN] `x`. SQLSTATE: 42703"),
        (f"{CALL}{TOO_LONG}\n\tat org.x", TOO_LONG),
    ],
)
def test_a_fault_that_every_restart_would_meet_again_is_final_and_its_line_is_the_reason(error: str, line: str) -> None:
    for text in (PROXY.format(error=error), f"Traceback (most recent call last):\n  File x\n{error}"):
        failure = Failure.of(RuntimeError(text))
        assert (failure.final, failure.line) == (True, line)


@pytest.mark.parametrize(
    "text", ["[DELTA_PATH_DOES_NOT_EXIST] x SQLSTATE: 42K03", "[TABLE_OR_VIEW_NOT_FOUND] x SQLSTATE: 42P01", "IO SQLSTATE: 58030"]
)
def test_a_fault_that_may_pass_or_that_the_next_start_explains_is_not_final(text: str) -> None:
    assert not Failure.of(RuntimeError(text)).final


def test_a_planner_that_was_killed_is_named() -> None:
    error = RuntimeError("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:  SQLSTATE: XXKST\n=== Streaming Query ===")
    error._stackTrace = "x: y\n\tat org.a.PythonStreamingSourceRunner.latestOffset(P.scala:1)\nCaused by: java.io.EOFException\n\tat z"  # type: ignore[attr-defined]
    failure = Failure.of(error)
    assert failure.line == "the Python process that plans the batches of the source has ended: killed, or out of memory; java.io.EOFException"
    assert not failure.final


def test_workers_that_a_busy_machine_cannot_start_use_up_no_restart() -> None:
    text = "Job aborted due to stage failure: Lost task\nCaused by: org.apache.spark.SparkException: Python worker failed to connect back."
    failure = Failure.of(RuntimeError(text))
    assert (failure.final, failure.counts) == (False, False)
    assert "too busy" in failure.line
    assert Failure.of(RuntimeError("plain")).counts


def test_an_error_leaves_a_batch_as_one_line_and_is_kept_whole() -> None:
    """A Java trace of kilobytes overflows the stack of the JVM, which searches it for an interruption by a regular expression."""
    whole = RuntimeError(f"An error occurred while calling o1.x.\n: java.io.IOException: disk\n{chr(9)}at org.x\n" * 1000)
    kept: list[Exception] = []
    with pytest.raises(RuntimeError) as raised, brief_errors(kept.append):
        raise whole
    assert str(raised.value) == "java.io.IOException: disk"
    assert kept == [whole]
    stopped = RuntimeError(f"An error occurred while calling o1.x.\n: java.lang.InterruptedException\n{chr(9)}at org.x\n" * 1000)
    with pytest.raises(RuntimeError) as raised, brief_errors():
        raise stopped
    of_spark = r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)(\r\n|\r|\n): (java.lang.InterruptedException)"
    assert re.search(of_spark, str(raised.value)), "a query that is stopped ends without an error"
    assert len(str(raised.value)) < 200
    with pytest.raises(GapInTable), brief_errors():
        raise GapInTable(path="t", partition=0, first=1, last=2)


def test_a_worker_that_ended_is_named_and_not_its_connection() -> None:
    text = "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat org.x\n"
    whole = RuntimeError(f"{text}Caused by: java.net.SocketException: Connection reset\n\tat java.y\n")
    with pytest.raises(RuntimeError) as raised, brief_errors():
        raise whole
    assert str(raised.value) == "Python worker exited unexpectedly: killed, or out of memory"
    failure = Failure.of(raised.value)
    assert (failure.line, failure.final) == (str(raised.value), False)


def test_another_spark_is_named() -> None:
    assert unsupported("4.2.0", "x") is None
    assert unsupported("4.2", "x") is None
    for version in ("3.5.0", "4.20.0", "4.0.1"):
        found = unsupported(version, "/opt/spark/python/pyspark/__init__.py")
        assert found is not None
        assert f"not {version} from /opt/spark/python" in found


def test_an_argument_that_lost_letters_is_noticed() -> None:
    assert damaged_argument(["--table", "pl??tze"], "ANSI_X3.4-1968") == "pl??tze"
    assert damaged_argument(["--table", "pl\ufffdtze"], "ISO-8859-1") == "pl\ufffdtze"
    assert damaged_argument(["--table", "seats"], "ANSI_X3.4-1968") is None
    assert damaged_argument(["--table", "Plätze?"], "UTF-8") is None
