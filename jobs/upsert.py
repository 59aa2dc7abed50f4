"""Merges the log into a Delta table by key, exactly once: `spark-submit --properties-file conf/spark-defaults.conf jobs/upsert.py --help`."""

from __future__ import annotations

import sys

from waltz_delta.spark_version import expect_spark

if __name__ == "__main__":
    expect_spark("upsert")
    from waltz_delta.base.ending import end_process
    from waltz_delta.jobs.job import upsert

    end_process(upsert(sys.argv[1:]))
