"""Whether the Spark that runs a job is the one that it was written for. Imports neither Spark nor anything of ours that needs it."""

from __future__ import annotations

import sys

__all__ = ["SPARK", "expect_spark", "unsupported"]

SPARK = "4.2"


def unsupported(version: str, place: str) -> str | None:
    """The reason why Spark of that version cannot run the jobs, or None."""
    if version == SPARK or version.startswith(f"{SPARK}."):
        return None
    return f"this job runs on Spark {SPARK}, not {version} from {place}; use its spark-submit, and unset SPARK_HOME and PYTHONPATH of another Spark"


def expect_spark(job: str) -> None:
    """Ends the process with one sentence on another Spark: one line of its own modules would otherwise be the error. Jobs call it before they import
    Spark."""
    try:
        import pyspark
    except Exception as error:  # another Spark under a Python that it does not know raises anything
        problem: str | None = f"this job runs on Spark {SPARK}, and pyspark cannot be imported: {error}"
    else:
        problem = unsupported(pyspark.__version__, str(pyspark.__file__))
    if problem is not None:
        print(f"{job}: {problem}", file=sys.stderr)
        sys.exit(2)
