"""The end of a driver's process."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import NoReturn

__all__ = ["end_process"]


def end_process(code: int) -> NoReturn:
    """Runs what is registered for the exit, writes what is buffered, and ends without the destructors of C libraries. Of the processes in which
    `deltalake` 1.6.6 merged, one in 30 ends with SIGSEGV in them, and a job that committed everything would count as failed."""
    try:
        atexit._run_exitfuncs()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)
