"""Fills a pipeline's tables from the whole log: `spark-submit --properties-file conf/spark-defaults.conf jobs/backfill.py --help`."""

from __future__ import annotations

import sys

from waltz_delta.jobs.backfill import backfill

if __name__ == "__main__":
    sys.exit(backfill(sys.argv[1:]))
