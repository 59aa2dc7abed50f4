"""Compares the log with a pipeline's tables, row by row: `spark-submit --properties-file conf/spark-defaults.conf jobs/audit.py --help`."""

from __future__ import annotations

import sys

from waltz_delta.spark_version import expect_spark

if __name__ == "__main__":
    expect_spark("audit")
    from waltz_delta.base.ending import end_process
    from waltz_delta.jobs.audit import audit

    end_process(audit(sys.argv[1:]))
