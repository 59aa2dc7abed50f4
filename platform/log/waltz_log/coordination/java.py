"""Finds a supported Java: 17 or 21, the two that Spark 4.2 and its ZooKeeper run on. Reads the machine, changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from waltz_log.errors import WaltzError
from waltz_log.exit_codes import LACKING

__all__ = ["OWN_JAVA", "SPARK_MODULES", "SUPPORTED_JAVA", "JavaMissing", "find_java", "parse_version"]

SUPPORTED_JAVA = (17, 21)
INSTALL = "install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"

SPARK_MODULES = ("jdk.incubator.vector",)
"""Spark's launcher names it. A Java without it, such as one that `jlink` made smaller, ends at once."""

OWN_JAVA = "java"
"""The folder below the environment's in which `make setup` keeps a Java where the machine has none."""


class JavaMissing(WaltzError):
    """There is no usable Java. Nothing was started.

    To do: install Java 17 or 21, or set `JAVA_HOME`."""

    text = "no usable java"
    exit_code = LACKING
    advice = INSTALL
    reason: str


def parse_version(output: str) -> int | None:
    """The feature release in the output of `java -version`, or None: `"17.0.15"` is 17, `"1.8.0_392"` is 8."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if found is None:
        return None
    first = int(found[1])
    return int(found[2]) if first == 1 and found[2] is not None else first


def find_java(environment: Mapping[str, str] = os.environ, modules: Sequence[str] = (), prefix: str = sys.prefix) -> tuple[Path, int]:
    """The program and its feature release: of `JAVA_HOME`, the first on the path, or the one that `make setup` put below `prefix`; the first of them
    that has the version and the modules. Raises `JavaMissing`, which says why each of them does not do."""
    reasons = []
    for program in _candidates(environment, Path(prefix)):
        reason, version = _examined(program, modules)
        if reason is None and version is not None:
            return program, version
        reasons.append(reason)
    raise JavaMissing(reason="; ".join(str(each) for each in reasons) or "neither JAVA_HOME nor the path has one")


def _candidates(environment: Mapping[str, str], prefix: Path) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]) / "bin" / "java"
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is not None:
        yield Path(found)
    own = prefix / OWN_JAVA / "bin" / "java"
    if own.exists():
        yield own


def _examined(program: Path, modules: Sequence[str]) -> tuple[str | None, int | None]:
    """Why the program does not do, or None, and its feature release."""
    if not os.access(program, os.X_OK):
        return f"JAVA_HOME holds none: {program.parent.parent}", None
    command = [str(program), *([f"--add-modules={','.join(modules)}"] if modules else []), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not run: {error}", None
    output = done.stderr + done.stdout
    lacking = re.search(r"Module (\S+) not found", output)
    if lacking is not None:
        return f"{program} lacks the module {lacking[1]}", None
    version = parse_version(output)
    if version is None and modules:  # Java 8 does not know the option
        return _examined(program, ())
    if version not in SUPPORTED_JAVA:
        return f"{program} is Java {version or 'of unknown version'}", None
    return None, version
