"""Checks what this machine must offer. Each check is one value: what was found, or one sentence that says what to do. Changes nothing. Runs before
anything is installed (`python3 -m waltz_log.cli.checks`, with the log's folder on the path), so it uses only the standard library.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from waltz_log.coordination.embedded import ZooKeeperJarsMissing, find_jars
from waltz_log.coordination.java import JavaMissing, find_java
from waltz_log.errors import WaltzError

__all__ = [
    "DELTA_COORDINATES",
    "DELTA_JARS",
    "DELTA_JARS_MARKER",
    "Check",
    "check_delta_jars",
    "check_disk",
    "check_java",
    "check_loopback",
    "check_memory",
    "check_packages",
    "check_python",
    "check_zookeeper_jars",
    "jars_complete",
    "machine_checks",
]

DELTA_COORDINATES = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_JARS = Path(".cache/delta-jars")
"""Where `make setup` keeps Delta's jars and `conf/spark-defaults.conf` expects them, below the project's folder."""

DISK_BYTES_MIN = 1_000_000_000
"""Below this much free space a run of the demo or the tests may fail half-way."""

MEMORY_BYTES_MIN = 6_000_000_000
"""All processes of the demo together."""

PINNED = {"pyspark": "4.2.0", "delta-spark": "4.4.0"}

DELTA_JARS_MARKER = f"{DELTA_COORDINATES} without the jars of pyspark {PINNED['pyspark']}"
"""What the folder's file COORDINATES holds."""


@dataclass(frozen=True)
class Check:
    """The result of one check. `advice` says what to do if it failed; `needed`: nothing works without it."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    needed: bool = True

    @property
    def sentence(self) -> str:
        return f"{self.name}: {self.found}" + (f"; {self.advice}" if self.advice and not self.ok else "")


def _guarded(name: str, advice: str, find: Callable[[], str], *expected: type[WaltzError]) -> Check:
    try:
        return Check(name, True, find())
    except expected as error:
        return Check(name, False, f"{error.text}, {error.facts['reason']}", advice)


def check_python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer")


def check_java(environment: Mapping[str, str] = os.environ) -> Check:
    def find() -> str:
        program, version = find_java(environment)
        return f"{version} at {program}"

    return _guarded("java", JavaMissing.advice, find, JavaMissing)


def check_disk(directory: Path, needed_bytes: int = DISK_BYTES_MIN) -> Check:
    """Of the nearest existing folder: the directory may still have to be made."""
    here = directory.resolve()
    while not here.exists():
        here = here.parent
    free = shutil.disk_usage(here).free
    advice = f"free at least {needed_bytes / 1e9:.1f} GB or work on another disk"
    return Check("disk", free >= needed_bytes, f"{free / 1e9:.1f} GB free at {here}", advice)


def check_memory(needed_bytes: int = MEMORY_BYTES_MIN) -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Check("memory", total >= needed_bytes, f"{total / 1e9:.1f} GB", f"the demo wants {needed_bytes / 1e9:.0f} GB", needed=False)


def check_loopback() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return Check("loopback", True, "can listen on 127.0.0.1")
    except OSError as error:
        return Check("loopback", False, f"cannot listen on 127.0.0.1, {error.strerror}", "bring the loopback interface up")


def check_packages() -> Check:
    """The versions that must fit together: Spark with Delta, and all of gRPC on one."""
    installed = {}
    for name in (*PINNED, "grpcio", "grpcio-status", "grpcio-health-checking"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    wrong = [f"{name} {installed[name]}, not {wanted}" for name, wanted in PINNED.items() if installed.get(name, wanted) != wanted]
    grpc = {version for name, version in installed.items() if name.startswith("grpcio")}
    if len(grpc) > 1:
        wrong.append(f"grpcio packages of versions {', '.join(sorted(grpc))}")
    if "grpcio" not in installed:
        wrong.append("grpcio is not installed")
    listed = ", ".join(f"{name} {version}" for name, version in sorted(installed.items()))
    return Check("packages", not wrong, "; ".join(wrong) or listed, "run make setup, or pip install with constraints.txt")


def check_zookeeper_jars() -> Check:
    def find() -> str:
        return next(jar.stem for jar in find_jars() if jar.name.startswith("zookeeper-"))

    return _guarded("zookeeper", ZooKeeperJarsMissing.advice, find, ZooKeeperJarsMissing)


def jars_complete(folder: Path, marker: str) -> bool:
    """The marker is written last, before the folder gets its name, and holds what it was made for."""
    try:
        return (folder / "COORDINATES").read_text().strip() == marker
    except OSError:
        return False


def check_delta_jars(project: Path) -> Check:
    folder = project / DELTA_JARS
    if not jars_complete(folder, DELTA_JARS_MARKER):
        return Check("delta jars", False, f"none of {DELTA_COORDINATES} in {folder}", "run make setup once with a network")
    return Check("delta jars", True, f"{len(list(folder.glob('*.jar')))} in {folder}")


def machine_checks(directory: Path) -> list[Check]:
    """All that `waltz dev`, the demo and the tests need. Delta's jars only in a checkout, which is where they lie."""
    checks = [check_python(), check_packages(), check_java(), check_zookeeper_jars(), check_disk(directory), check_memory(), check_loopback()]
    if (directory / "conf" / "spark-defaults.conf").exists():
        checks.insert(4, check_delta_jars(directory))
    return checks


def main() -> int:
    """For the Makefile, before and after the installation: silent where all is well, else one sentence a finding."""
    needed = float(sys.argv[1]) * 1e9 if len(sys.argv) > 1 else DISK_BYTES_MIN
    failed = [check for check in (check_python(), check_java(), check_disk(Path.cwd(), int(needed))) if not check.ok]
    for check in failed:
        print(f"setup: {check.sentence}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
