"""Appends the log to a Delta table, exactly once: `spark-submit --properties-file conf/spark-defaults.conf jobs/ingest.py --help`."""

from __future__ import annotations

import sys

from waltz_delta.spark_version import expect_spark

if __name__ == "__main__":
    expect_spark("ingest")
    from waltz_delta.base.ending import end_process
    from waltz_delta.jobs.job import ingest

    end_process(ingest(sys.argv[1:]))
