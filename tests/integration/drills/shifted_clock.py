"""Runs a program under a clock that is wrong by so many seconds: `shifted_clock.py SECONDS ARGUMENT...` is `waltz ARGUMENT...`.

Only `time.time_ns` is wrong, which the platform's clock reads. gRPC adds timeouts to `time.time` and compares the sum with the system's clock, so
that one must not differ from it.
"""

from __future__ import annotations

import runpy
import sys
import time

shift_s = int(sys.argv[1])
real_ns = time.time_ns
time.time_ns = lambda: real_ns() + shift_s * 1_000_000_000
sys.argv = ["waltz", *sys.argv[2:]]
runpy.run_module("waltz_log.cli", run_name="__main__")
