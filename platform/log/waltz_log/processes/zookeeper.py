"""`waltz zookeeper`: a real ZooKeeper in the foreground, from the jars inside the installed pyspark."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import FrameType

from waltz_log.coordination import embedded
from waltz_log.errors import InvalidSetting, StorageFailed
from waltz_log.processes.serving import say_ready
from waltz_log.security.settings import chosen_tls, expect_protected

__all__ = ["run"]

START_TIMEOUT_S = 30.0


def run(directory: Path, listen: str, *, insecure: bool = False) -> int:
    """Returns the exit code: 0 if it was asked to stop. The environment names the certificates (`security.settings`)."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidSetting(name="listen", reason=f"must be host:port, not {listen!r}", nearest=None)
    tls = chosen_tls(None)
    expect_protected(listen, tls, insecure=insecure)
    if embedded.answers(host, int(port), tls=tls):
        raise OSError(f"cannot listen on {listen}: a zookeeper answers there already")
    process = subprocess.Popen(embedded.prepare(directory, int(port), host, tls), stdin=subprocess.DEVNULL)
    asked = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        process.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        embedded.wait_until_answering(host, int(port), START_TIMEOUT_S, lambda: process.poll() is None, tls)
        say_ready("zookeeper", address=listen, directory=directory)
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if asked:
        return 0
    raise StorageFailed(partition=-1, reason=f"zookeeper ended by itself: exit code {code}")
