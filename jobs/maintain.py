"""Compacts, clusters and cleans a pipeline's tables: `spark-submit --properties-file conf/spark-defaults.conf jobs/maintain.py --help`."""

from __future__ import annotations

import sys

from waltz_delta.spark_version import expect_spark

if __name__ == "__main__":
    expect_spark("maintain")
    from waltz_delta.base.ending import end_process
    from waltz_delta.jobs.maintain import maintain

    end_process(maintain(sys.argv[1:]))
