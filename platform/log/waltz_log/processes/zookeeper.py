"""`waltz zookeeper`: a real ZooKeeper in the foreground, from the jars inside the installed pyspark.

It follows its certificate files. A renewed certificate is served to new connections within seconds. A change of the authorities restarts ZooKeeper in
order, which sessions survive.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from types import FrameType

from waltz_log.coordination import embedded
from waltz_log.coordination.access_lists import access_lists
from waltz_log.coordination.ensemble_root import close_served
from waltz_log.coordination.served_identity import ServedIdentity
from waltz_log.errors import ClusterUnavailable, InvalidSetting, StorageFailed
from waltz_log.loggers import get_logger
from waltz_log.processes.serving import say_ready
from waltz_log.security.settings import TlsSettings, chosen_tls, expect_protected
from waltz_log.transport.addresses import ReservedAddress

__all__ = ["run"]

log = get_logger(__name__)

START_REPORT_S = 30.0
"""ZooKeeper reads its snapshot and its log before it serves. With many nodes or a slow disk this takes minutes, and it is not ended meanwhile."""

RENEW_S = 1.0
"""Between two reads of the certificate files' times."""


def run(directory: Path, listen: str, *, insecure: bool = False) -> int:
    """Returns the exit code: 0 if it was asked to stop. The environment names the certificates (`security.settings`). Raises `OSError` if the
    address is in use or invalid."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidSetting(name="listen", reason=f"must be host:port, not {listen!r}", nearest=None)
    tls = chosen_tls(None)
    expect_protected(listen, tls, insecure=insecure)
    if embedded.answers(host, int(port), tls=tls):
        raise OSError(f"cannot listen on {listen}: a zookeeper answers there already")
    ReservedAddress(listen).close()  # Java would report a busy port in the middle of its log, and this process only that it ended
    served = _Served(directory, host, int(port), tls)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, served.stop)
    code = 0
    try:
        served.start()
        say_ready("zookeeper", address=listen, directory=directory)
        code = served.wait()
    except ClusterUnavailable:
        if not served.asked:
            raise
    finally:
        served.end()
    if served.asked:
        return 0
    raise StorageFailed(partition=-1, reason=f"zookeeper ended by itself: exit code {code}")


class _Served:
    """The process of Java, and what it serves with."""

    def __init__(self, directory: Path, host: str, port: int, tls: TlsSettings | None) -> None:
        self.asked = False
        self._host, self._port, self._tls = host, port, tls
        self._command = embedded.prepare(directory, port, host, tls)
        self._identity = None if tls is None else ServedIdentity(directory.resolve(), tls)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it serves, and strangers may change nothing. Raises `ClusterUnavailable` if it ends before."""
        process = self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        began_s = time.monotonic()
        while not embedded.answers_within(self._host, self._port, START_REPORT_S, lambda: process.poll() is None, self._tls):
            log.warning("zookeeper does not serve yet", address=f"{self._host}:{self._port}", waited_s=round(time.monotonic() - began_s))
        if access_lists(self._tls).writers:
            close_served(f"{self._host}:{self._port}", self._tls)

    def wait(self) -> int:
        """Returns the exit code when the process has ended by itself, or because it was asked to."""
        assert self._process is not None
        while True:
            try:
                return self._process.wait(RENEW_S)
            except subprocess.TimeoutExpired:
                if not self.asked and self._trusts_others():
                    log.warning("authorities changed, zookeeper restarts", address=f"{self._host}:{self._port}")
                    self.end()
                    self.start()

    def _trusts_others(self) -> bool:
        try:
            return self._identity is not None and self._identity.renew() == "restart"
        except OSError as error:
            log.error("renewed certificate not served, retrying", reason=str(error))
            return False

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
