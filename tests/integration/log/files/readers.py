"""Reads hostile files in processes of their own: `python -m tests.integration.log.files.readers`, one case for each line of JSON on standard input.

The process imports everything once and forks for each case, so that a case costs milliseconds. A case runs with limits of memory, processor time and
written bytes, and optionally as another user. The answer is its exit code, output, seconds and the memory that it added.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt  # noqa: F401  # with the next, what is otherwise imported late: a case that runs as another user may not reach the folder of packages
import structlog  # noqa: F401

from pyspark_waltz.decode import formats
from waltz_delta.console.job_metrics import JobMetrics
from waltz_log.cli import main as waltz
from waltz_log.cli.cluster.adopt import read_nodes
from waltz_log.cli.support import bundle
from waltz_log.cli.topics.spark_checkpoints import read_checkpoint
from waltz_log.coordination.followed import RULES, KnownValues
from waltz_log.coordination.remembered_values import RememberedValues
from waltz_log.errors import WaltzError
from waltz_log.exit_codes import USAGE
from waltz_log.outside_text import printable
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, TokenSettings
from waltz_log.security.token_file import TokenFile
from waltz_log.security.tokens import Tokens

__all__ = ["READERS"]

MIB = 1024 * 1024
CPU_S = 30
WRITTEN_BYTES = 64 * MIB
ADDED_BYTES = 1536 * MIB


def _certificates(directory: str) -> None:
    place = Path(directory)
    Certificates(TlsSettings(certificate=place / "node.pem", key=place / "node.key", authorities=place / "authority.pem"))


def _bundle(path: str) -> None:
    problems: dict[str, str] = {}
    bundle._settings([Path(path)], problems)
    _report(problems.values())


def _rules(directory: str) -> None:
    known = KnownValues()
    RememberedValues(Path(directory)).load(known)
    if known.value(RULES) is None:
        raise OSError("remembered rules cannot be read, without them nothing is permitted")


def _log(path: str) -> None:
    problems: dict[str, str] = {}
    bundle._logs([Path(path)], problems)
    _report(problems.values())


def _report(problems: Any) -> None:
    for problem in problems:
        raise OSError(problem)


READERS: dict[str, Callable[[str], object]] = {
    "certificates": _certificates,
    "key set": lambda path: Tokens(TokenSettings(issuer="i", audience="a", keys=Path(path), operators=("ops/*",))),
    "token": lambda path: TokenFile(Path(path)).metadata(),
    "descriptor": lambda path: formats._read(path, "descriptor"),
    "directory facts": lambda path: read_nodes([f"n={path}"]),
    "checkpoint": read_checkpoint,
    "job metrics": lambda path: _report(JobMetrics((path,), None).read()[1]),
    "development cluster": lambda path: LocalCluster(Path(path), partitions=1),
    "settings in a bundle": _bundle,
    "log": _log,
    "remembered rules": _rules,
}
"""Readers that are no command of their own. Each raises `WaltzError` or `OSError`, which commands print as one sentence."""


def _run(case: dict[str, Any]) -> int:
    if "command" in case:
        return waltz.run(case["command"])
    try:
        READERS[case["reader"]](case["path"])
    except (WaltzError, OSError) as error:
        print(f"waltz: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return USAGE
    return 0


def _child(case: dict[str, Any], out: Path) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(out / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if case.get("user"):
        os.setgid(case["user"])
        os.setuid(case["user"])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDED_BYTES, used + ADDED_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN_BYTES, WRITTEN_BYTES))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.umask(case.get("umask", 0o022))
    os.environ.update(case.get("environment", {}))
    os.chdir(case["cwd"])
    code = 99
    try:
        code = _run(case)
    except SystemExit as ended:
        code = int(ended.code or 0) if isinstance(ended.code, int | None) else 98
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    out = Path(sys.argv[1])
    for line in sys.stdin:
        case = json.loads(line)
        began_s = time.monotonic()
        before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        child = os.fork()
        if child == 0:
            _child(case, out)
        killed = False
        while True:
            ended, status, usage = os.wait4(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() - began_s > case["timeout_s"] and not killed:
                os.kill(child, signal.SIGKILL)
                killed = True
            time.sleep(0.005)
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            "hung": killed,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "added_bytes": max(0, usage.ru_maxrss * 1024 - before),
            "out": (out / "out").read_text(errors="replace")[-20000:],
            "err": (out / "err").read_text(errors="replace")[-20000:],
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
