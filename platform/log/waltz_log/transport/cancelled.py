"""Distinguishes the cancellation of a task from that of what it awaits."""

from __future__ import annotations

import asyncio

__all__ = ["task_is_cancelled"]


def task_is_cancelled() -> bool:
    """Whether the current task itself is cancelled. gRPC raises `CancelledError` also if the call was cancelled here or its channel was closed; so
    does a future that other code cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
