"""Treats SIGTERM and SIGINT as a request to stop after the current batch, whichever of a driver's two processes receives them.

`spark-submit` is a JVM with the Python driver as its child; a supervisor signals the JVM, a terminal both. By default the JVM shuts Spark down under
the running batch. So the handlers of the JVM are replaced as well, through py4j. One request may thus arrive twice: from a terminal, or from a
supervisor that signals every process of its group, as systemd does. A second signal that comes later ends the driver at once, which the sink
survives.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any  # py4j's objects have no types

from pyspark import java_gateway
from pyspark.sql import SparkSession

__all__ = ["StopRequest"]

SAME_REQUEST_S = 2.0
"""Signals that the two processes report within this time count as one request. Far longer than a callback from the JVM."""


class _JavaHandler:
    """The JVM calls `handle`, the method of `sun.misc.SignalHandler`, when it receives a signal."""

    def __init__(self, request: StopRequest) -> None:
        self._request = request

    def handle(self, signal_: Any) -> None:
        self._request.request(int(signal_.getNumber()))

    class Java:
        implements = ("sun.misc.SignalHandler",)


class StopRequest:
    """Replaces the signal handlers for the life of the process; must be created in the main thread."""

    def __init__(self, spark: SparkSession, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._event = threading.Event()
        self._clock = clock
        self._asked_s: float | None = None
        gateway: Any = spark.sparkContext._gateway
        start_callbacks: Any = java_gateway.ensure_callback_server_started
        start_callbacks(gateway)
        handler = _JavaHandler(self)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self.request(got))
            java = gateway.jvm.sun.misc.Signal
            java.handle(java(number.name.removeprefix("SIG")), handler)

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleeps until the time is over or a stop is requested. Returns whether a stop is requested."""
        return self._event.wait(seconds)

    def request(self, number: int) -> None:
        now_s = self._clock()
        if self._asked_s is None:
            self._asked_s = now_s
        elif now_s - self._asked_s > SAME_REQUEST_S:
            os._exit(128 + number)
        self._event.set()
