"""Runs a program under a clock that is wrong by so many seconds: `shifted_clock.py SECONDS ARGUMENT...` is `waltz ARGUMENT...`."""

from __future__ import annotations

import runpy
import sys
import time

shift_s = int(sys.argv[1])
real_ns, real = time.time_ns, time.time
time.time_ns = lambda: real_ns() + shift_s * 1_000_000_000
time.time = lambda: real() + shift_s
sys.argv = ["waltz", *sys.argv[2:]]
runpy.run_module("waltz_log.cli", run_name="__main__")
