"""Lands dead letters again after a correction: `spark-submit --properties-file conf/spark-defaults.conf jobs/replay_dead_letters.py --help`."""

from __future__ import annotations

import sys

from waltz_delta.dead_letters_replay import replay_dead_letters

if __name__ == "__main__":
    sys.exit(replay_dead_letters(sys.argv[1:]))
