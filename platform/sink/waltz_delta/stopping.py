"""SIGTERM and SIGINT as a request to stop in good order, to whichever of a driver's two processes they are sent.

`spark-submit` is a JVM with the Python driver as its child; a supervisor signals the JVM, a terminal both. Left alone, the JVM takes Spark down under
the running batch. So the JVM's signals are taken over as well, through py4j. A second signal ends the driver at once, which the sink survives.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from pyspark import java_gateway
from pyspark.sql import SparkSession

__all__ = ["StopRequest"]


class _JavaHandler:
    """Called by the JVM when it gets a signal."""

    def __init__(self, request: StopRequest) -> None:
        self._request = request

    def handle(self, signal_: Any) -> None:
        self._request.ask(int(signal_.getNumber()))

    class Java:
        implements = ("sun.misc.SignalHandler",)


class StopRequest:
    """Takes the signals over for the life of the process; made in the main thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._event = threading.Event()
        gateway: Any = spark.sparkContext._gateway
        start_callbacks: Any = java_gateway.ensure_callback_server_started
        start_callbacks(gateway)
        handler = _JavaHandler(self)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self.ask(got))
            java = gateway.jvm.sun.misc.Signal
            java.handle(java(number.name.removeprefix("SIG")), handler)

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleeps, until a stop is asked for at the latest; whether it is."""
        return self._event.wait(seconds)

    def ask(self, number: int) -> None:
        if self._event.is_set() and number == signal.SIGTERM:
            os._exit(128 + number)
        self._event.set()
