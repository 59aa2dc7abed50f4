"""A driver that kills itself and its JVM with SIGKILL right after the sink's commit of its second batch: the worst moment, before the checkpoint.

Run by `test_jobs_run` with spark-submit; the arguments are those of `jobs/ingest.py`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from waltz_delta import DeltaAppend, job

FATAL_BATCH = 1


class Dying(DeltaAppend):
    def __call__(self, batch: Any, batch_id: int) -> None:
        super().__call__(batch, batch_id)
        if batch_id == FATAL_BATCH:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    setattr(job, DeltaAppend.__name__, Dying)
    sys.exit(job.ingest(sys.argv[1:]))
