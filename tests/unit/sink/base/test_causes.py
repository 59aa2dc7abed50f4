"""What a job says when the machine under it lacks something: the cause, what to do, and no second attempt."""

from __future__ import annotations

import pytest

from waltz_delta.base.job_outcome import Failure
from waltz_delta.base.session import damaged_argument
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
