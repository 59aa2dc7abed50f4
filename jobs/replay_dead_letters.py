"""Lands dead letters again after a correction: `spark-submit --properties-file conf/spark-defaults.conf jobs/replay_dead_letters.py --help`."""

from __future__ import annotations

import sys

from waltz_delta.spark_version import expect_spark

if __name__ == "__main__":
    expect_spark("replay_dead_letters")
    from waltz_delta.base.ending import end_process
    from waltz_delta.dead_letters_replay import replay_dead_letters

    end_process(replay_dead_letters(sys.argv[1:]))
