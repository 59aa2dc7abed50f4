"""Finds a supported Java: 17 or 21, the two that Spark 4.2 and its ZooKeeper run on. Reads the machine, changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from waltz_log.errors import WaltzError
from waltz_log.exit_codes import LACKING

__all__ = ["SUPPORTED_JAVA", "JavaMissing", "find_java", "parse_version"]

SUPPORTED_JAVA = (17, 21)
INSTALL = "install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"


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


def find_java(environment: Mapping[str, str] = os.environ) -> tuple[Path, int]:
    """The program and its feature release: of `JAVA_HOME`, or else the first on the path. Raises `JavaMissing`."""
    home = environment.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        if not os.access(program, os.X_OK):
            raise JavaMissing(reason=f"JAVA_HOME holds none: {home}")
    else:
        found = shutil.which("java", path=environment.get("PATH"))
        if found is None:
            raise JavaMissing(reason="neither JAVA_HOME nor the path has one")
        program = Path(found)
    try:
        output = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(reason=f"{program} does not run: {error}") from None
    version = parse_version(output.stderr + output.stdout)
    if version not in SUPPORTED_JAVA:
        raise JavaMissing(reason=f"{program} is Java {version or 'of unknown version'}")
    return program, version
