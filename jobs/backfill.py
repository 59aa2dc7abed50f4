"""Fills a pipeline's tables from the whole log: `spark-submit --properties-file conf/spark-defaults.conf jobs/backfill.py --help`."""

from __future__ import annotations

import sys

from waltz_delta.spark_version import expect_spark

if __name__ == "__main__":
    expect_spark("backfill")
    from waltz_delta.base.ending import end_process
    from waltz_delta.jobs.backfill import backfill

    end_process(backfill(sys.argv[1:]))
