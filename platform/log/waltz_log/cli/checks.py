"""Checks what this machine must offer. Each check is one value: what was found, or one sentence that says what to do. Changes nothing. `make setup`
runs it before anything is installed, so it uses only the standard library.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from waltz_log import machine_faults
from waltz_log.child_environment import utf8_locale
from waltz_log.coordination.embedded import ZooKeeperJarsMissing, find_jars
from waltz_log.coordination.java import SPARK_MODULES, JavaMissing, find_java
from waltz_log.errors import WaltzError

__all__ = [
    "DELTA_JARS",
    "DELTA_PINS",
    "Check",
    "check_delta_jars",
    "check_disk",
    "check_java",
    "check_loopback",
    "check_memory",
    "check_packages",
    "check_python",
    "check_zookeeper_jars",
    "machine_checks",
    "read_pins",
    "unfit_jars",
]

DELTA_JARS = Path(".cache/delta-jars")
"""Where `make setup` keeps Delta's jars and `conf/spark-defaults.conf` expects them, below the project's folder."""

DELTA_PINS = Path("conf/delta-jars.sha256")
"""The jars that must be there, with their SHA-256. No jar that Spark has, too: older ones on the same class path would replace Spark's own."""

DISK_BYTES_MIN = 1_000_000_000
"""Below this much free space a run of the demo or the tests may fail half-way."""

MEMORY_BYTES_MIN = 6_000_000_000
"""All processes of the demo together."""

PINNED = {"pyspark": "4.2.0", "delta-spark": "4.4.0"}


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
        program, version = find_java(environment, SPARK_MODULES)
        return f"{version} at {program}"

    return _guarded("java", JavaMissing.advice, find, JavaMissing)


def check_disk(directory: Path, needed_bytes: int = DISK_BYTES_MIN) -> Check:
    """The free space of the nearest existing folder: the directory may still have to be made."""
    here = directory.resolve()
    while not here.exists():
        here = here.parent
    free = shutil.disk_usage(here).free
    advice = f"free at least {needed_bytes / 1e9:.1f} GB or work on another disk"
    return Check("disk", free >= needed_bytes, f"{free / 1e9:.1f} GB free at {here}", advice)


def check_memory(needed_bytes: int = MEMORY_BYTES_MIN) -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Check("memory", total >= needed_bytes, f"{total / 1e9:.1f} GB", f"the demo needs {needed_bytes / 1e9:.0f} GB", needed=False)


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


def read_pins(path: Path) -> dict[str, tuple[str, str]]:
    """From a line `sha256  group:artifact:version` of the file: the name of the jar, to its coordinates and its hash. Raises `OSError`."""
    found = {}
    for line in path.read_text().splitlines():
        digest, coordinates = line.split()
        found["{}_{}-{}.jar".format(*coordinates.split(":"))] = (coordinates, digest)
    return found


def unfit_jars(folder: Path, pins: Mapping[str, tuple[str, str]]) -> list[str]:
    """What is wrong with the jars of the folder: one is missing, another one than the pinned one, or one too many."""
    try:
        present = {path.name: path for path in folder.glob("*.jar")}
        wrong = [f"{name} is missing" for name in pins if name not in present]
        wrong += [f"{name} is not one of ours" for name in sorted(present) if name not in pins]
        for name, path in sorted(present.items()):
            if name in pins and hashlib.sha256(path.read_bytes()).hexdigest() != pins[name][1]:
                wrong.append(f"{name} is not the pinned file, of {path.stat().st_size} bytes")
    except OSError as error:
        return [f"{error.filename}: {error.strerror}"]
    return wrong


def check_delta_jars(project: Path) -> Check:
    folder = project / DELTA_JARS
    wrong = unfit_jars(folder, read_pins(project / DELTA_PINS))
    if wrong:
        return Check("delta jars", False, f"{wrong[0]}, in {folder}", "run make setup with a network")
    return Check("delta jars", True, f"{len(list(folder.glob('*.jar')))} with the pinned hashes, in {folder}")


def check_account() -> Check:
    problem = machine_faults.unnamed_user() or machine_faults.low_file_limit()
    return Check("account", problem is None, problem or f"user id {os.geteuid()}, enough open files")


def check_folder(project: Path) -> Check:
    """Checks the folder of a checkout, whose environment may be a copy of another one's."""
    problem = machine_faults.unusable_folder(project) or machine_faults.foreign_code(project, __file__)
    return Check("folder", problem is None, problem or str(project))


def check_locale(environment: Mapping[str, str] = os.environ) -> Check:
    found = utf8_locale(environment)
    advice = "install one, or file names with other letters than English ones are refused"
    return Check("locale", found is not None, found or "none with UTF-8", advice, needed=False)


def check_temporary() -> Check:
    problem = machine_faults.java_temporary()
    return Check("temporary", problem is None, problem or "programs run from /tmp", "spark-submit uses the project's .cache instead", needed=False)


def machine_checks(directory: Path) -> list[Check]:
    """All that `waltz dev`, the demo and the tests need. Delta's jars and the folder only in a checkout."""
    checks = [check_python(), check_packages(), check_java(), check_zookeeper_jars(), check_disk(directory), check_memory(), check_loopback()]
    checks += [check_account(), check_locale(), check_temporary()]
    if (directory / "conf" / "spark-defaults.conf").exists():
        checks[4:4] = [check_delta_jars(directory), check_folder(directory)]
    return checks
