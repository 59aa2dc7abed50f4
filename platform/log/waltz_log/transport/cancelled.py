"""Whose cancellation a `CancelledError` is."""

from __future__ import annotations

import asyncio

__all__ = ["task_is_cancelled"]


def task_is_cancelled() -> bool:
    """gRPC tells a call that was cancelled here, or whose channel was closed, as if the task that uses it had been cancelled; so does a future that
    somebody else cancelled. This tells them apart."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
