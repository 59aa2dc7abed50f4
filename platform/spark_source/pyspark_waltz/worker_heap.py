"""What a Python worker of Spark has loaded is left out of garbage collections.

Spark keeps workers, and each collects its whole heap after each task (`pyspark.daemon`). With pyarrow, numpy and grpc loaded that takes a tenth of a
second and finds nothing: of the processor time of workers with small batches it was three quarters.
"""

from __future__ import annotations

import gc

__all__ = ["task_begins"]

TASKS: int = 3
"""The first tasks of a worker load what all others need."""

_begun: int = 0
_task: int | None = None


def task_begins() -> None:
    """Called when a task of ours begins, perhaps by several of its parts. Does nothing outside of Spark's workers."""
    global _begun, _task
    from pyspark import TaskContext

    context = TaskContext.get() if _begun < TASKS else None
    if context is not None and context.taskAttemptId() != _task:
        _begun, _task = _begun + 1, context.taskAttemptId()
        gc.freeze()
