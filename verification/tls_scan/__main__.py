"""`make tls-scan`: sslyze and testssl.sh against each port of a local cluster with mutual TLS. Ends with 1 if a port offers less than TLS 1.3, a weak
cipher or a known vulnerability, or serves a client without a certificate; and if a program could not say so.

sslyze presents a certificate, because it gives up at ports that refuse it without one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from verification.console import console_of
from verification.tls_scan.judging import judge_sslyze, judge_testssl
from verification.tls_scan.planted import WEAKNESSES, planted
from verification.tls_scan.ports import HOST, Kind, Port, ports_of
from verification.tls_scan.stranger import welcome_of
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.settings import TlsSettings

SSLYZE: Final = Path(".venv/tls-scan/bin/sslyze")
SSLYZE_ATTEMPTS: Final = (
    "sslv2",
    "sslv3",
    "tlsv1",
    "tlsv1_1",
    "tlsv1_2",
    "tlsv1_3",
    "heartbleed",
    "openssl_ccs",
    "compression",
    "reneg",
    "early_data",
)
SSLYZE_SECONDS_MAX: Final = 180

TESTSSL: Final = (
    "testssl",
    "--quiet",
    "--color",
    "0",
    "--warnings",
    "off",
    "--nodns",
    "none",
    "--fast",
    "--connect-timeout",
    "5",
    "--openssl-timeout",
    "5",
)
TESTSSL_CHECKS: Final = ("--protocols", "--standard", "--server-defaults")
TESTSSL_SECONDS_MAX: Final = 600


def _report_of(command: list[str], file: Path, seconds: float) -> Any:
    """What the program wrote into the file; None if it wrote nothing in time."""
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
        return json.loads(file.read_text())
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return None


def _examine(port: Port, directory: Path, files: TlsSettings) -> Iterator[str]:
    """Everything that is wrong with the port."""
    address = f"{HOST}:{port.number}"
    if (welcome := welcome_of(port)) is not None:
        yield welcome
    file = directory / f"sslyze-{port.number}.json"
    command = [str(SSLYZE), "--quiet", "--mozilla_config", "disable", "--cert", str(files.certificate), "--key", str(files.key)]
    report = _report_of([*command, "--json_out", str(file), *(f"--{each}" for each in SSLYZE_ATTEMPTS), address], file, SSLYZE_SECONDS_MAX)
    yield from ["sslyze wrote no report"] if report is None else judge_sslyze(report)
    file = directory / f"testssl-{port.number}.json"
    report = _report_of([*TESTSSL, "--add-ca", str(files.authorities), "--jsonfile", str(file), *TESTSSL_CHECKS, address], file, TESTSSL_SECONDS_MAX)
    yield from ["testssl.sh wrote no report"] if report is None else judge_testssl(report)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1] for _ in range(count)]


def _https(port: int) -> dict[str, Any]:
    return {"http": {"port": port, "tls": True, "clients": ["spiffe://*/reader/*"]}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make tls-scan", description="sslyze and testssl.sh against each port of a secure cluster")
    parser.add_argument("--plant", choices=WEAKNESSES, help="scans a port with this weakness instead, which must be noticed")
    parser.add_argument("--only", choices=list(Kind), help="ports of this kind")
    given = parser.parse_args()
    lacking = [name for name, there in (("sslyze", SSLYZE.exists()), ("testssl.sh", shutil.which("testssl"))) if not there]
    if lacking:
        print(f"tls-scan: not installed: {', '.join(lacking)} (as root, make tls-scan installs them)", file=sys.stderr)
        return 2
    metrics = _free_ports(2)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder)
        server, storage = map(_https, metrics)
        local = LocalCluster(
            directory / "cluster", partitions=2, storages=1, servers=1, secure=True, server_settings=server, storage_settings=storage
        )
        cluster = stack.enter_context(local)
        files = cluster.certificate("node", "planted")
        console = Port("console", Kind.CONSOLE, stack.enter_context(console_of(cluster)).port)
        ports = [port for port in (*ports_of(cluster, set(metrics)), console) if given.only in (None, port.kind)]
        if given.plant:
            ports = [stack.enter_context(planted(given.plant, files))]
        for port in ports:
            began_s = time.monotonic()
            found = [*_examine(port, directory, files)]
            print(f"{port!s:<28} {'WEAK' if found else 'ok':<5} {time.monotonic() - began_s:.0f} s", flush=True)
            for each in found:
                print(f"  {each}", flush=True)
            wrong += bool(found)
    kinds = {port.kind for port in ports}
    if not given.plant and not given.only and kinds != set(Kind):
        print(f"tls-scan: no port of these kinds was found: {', '.join(sorted(set(Kind) - kinds))}")
        return 1
    print(f"{len(ports) - wrong} of {len(ports)} ports have nothing below TLS 1.3 and ask for a certificate")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
