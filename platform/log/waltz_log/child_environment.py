"""The environment of the programs that this project starts: Java, Spark and pip read settings of other projects from the user's.

Each function returns a whole environment and changes nothing. What a program needs to reach the network (proxies, certificates, an index) is kept.
Runs before anything is installed, so it uses only the standard library.
"""

from __future__ import annotations

import ast
import ctypes
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["java_environment", "java_proxies", "locale_exists", "pip_environment", "pip_settings", "spark_environment", "utf8_locale"]

UTF8_LOCALES: Final = ("C.UTF-8", "C.utf8", "en_US.UTF-8", "en_US.utf8")
"""A language would change more than the encoding: under a Turkish one, Spark compares names in another way."""

SPARK_KEPT: Final = frozenset(
    {"SPARK_LOCAL_DIRS", "SPARK_PRINT_LAUNCH_COMMAND", "SPARK_SUBMIT_OPTS", "PYSPARK_DRIVER_PYTHON_OPTS", "HADOOP_USER_NAME"}
)
"""The rest of these prefixes chooses another Spark, its settings, its cluster or its Python."""

SPARK_PREFIXES: Final = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_")

SPARK_DROPPED: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONIOENCODING", "MASTER", "IPYTHON", "IPYTHON_OPTS", "_JAVA_OPTIONS"})
"""`_JAVA_OPTIONS` goes before the options of the command line; `JAVA_TOOL_OPTIONS`, which goes after them, is kept."""

PIP_KEPT: Final = frozenset(
    {
        *("index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "cert", "client-cert", "proxy", "keyring-provider"),
        *("timeout", "default-timeout", "retries", "cache-dir", "no-cache-dir"),
    }
)
"""Where packages come from, and how pip reaches it. Everything else changes what is installed, or where."""


def locale_exists(name: str) -> bool:
    """Whether the C library knows the locale. Asks without a change to this process, which may have threads."""
    if not sys.platform.startswith("linux"):
        return True
    newlocale, freelocale = ctypes.CDLL(None).newlocale, ctypes.CDLL(None).freelocale
    newlocale.restype, newlocale.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    freelocale.restype, freelocale.argtypes = None, (ctypes.c_void_p,)
    found = newlocale(1, name.encode(), None)  # 1: LC_CTYPE_MASK
    if found:
        freelocale(found)
    return bool(found)


def utf8_locale(environment: Mapping[str, str], exists: Callable[[str], bool] = locale_exists) -> str | None:
    """A locale with UTF-8 that this machine has, or None: Java encodes file names and arguments as the locale says, and "?" replaces the rest."""
    own = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    encoded = own.partition(".")[2].lower().replace("-", "") == "utf8"
    return next((name for name in (*UTF8_LOCALES, *([own] if encoded else [])) if exists(name)), None)


def java_environment(environment: Mapping[str, str], exists: Callable[[str], bool] = locale_exists) -> dict[str, str]:
    """For a Java process: file names in UTF-8, no options that override those of its command line."""
    chosen = utf8_locale(environment, exists)
    kept = {name: value for name, value in environment.items() if name != "_JAVA_OPTIONS"}
    return kept if chosen is None else {**kept, "LC_ALL": chosen}


def spark_environment(environment: Mapping[str, str], *, python: Path, spark_home: Path, java: Path) -> dict[str, str]:
    """For the Spark in `spark_home`, with `python` as its interpreter and the program `java`: nothing of another Spark, Hadoop or Python."""
    kept = {
        name: value
        for name, value in java_environment(environment).items()
        if name in SPARK_KEPT or not (name in SPARK_DROPPED or name.startswith(SPARK_PREFIXES))
    }
    if environment.get("PYSPARK_DRIVER_PYTHON", str(python)) != str(python):
        kept.pop("PYSPARK_DRIVER_PYTHON_OPTS", None)  # options of another program, such as `notebook`
    path, named = kept.get("PATH", os.defpath), str(python)
    if shlex.quote(named) != named:  # Spark asks a shell for it without quotes, and finds no data source in Python otherwise
        path, named = f"{python.parent}{os.pathsep}{path}", "python3"
    return {
        **kept,
        "PATH": path,
        "SPARK_HOME": str(spark_home),
        "PYSPARK_PYTHON": named,
        "PYSPARK_DRIVER_PYTHON": named,
        "SPARK_LOCAL_IP": "127.0.0.1",  # Spark resolves the name of the host otherwise
        "JAVA_HOME": str(java.parent.parent),
    }


def java_proxies(environment: Mapping[str, str]) -> list[str]:
    """Java's options for the proxies that the environment names for other programs (`https_proxy`), which Java does not read."""
    options = []
    for scheme in ("http", "https"):
        named = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY") or ""
        host, _, port = named.rpartition("://")[2].rpartition("@")[2].strip("/").rpartition(":")
        if host and port.isdecimal():
            options += [f"-D{scheme}.proxyHost={host}", f"-D{scheme}.proxyPort={port}"]
    return options


def pip_settings(listed: Iterable[str]) -> dict[str, str]:
    """The lines of `pip config list` as variables, for the options that are kept. A variable of the environment wins, then the section `install`."""
    by_section: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed:
        key, separator, value = line.strip().partition("=")
        section, _, option = key.rpartition(".")
        if separator and option in PIP_KEPT and section in by_section:
            by_section[section][f"PIP_{option.upper().replace('-', '_')}"] = str(ast.literal_eval(value))
    return by_section["global"] | by_section["install"] | by_section[":env:"]


def pip_environment(environment: Mapping[str, str], settings: Mapping[str, str], temporary: Path) -> dict[str, str]:
    """For pip, which builds in the folder `temporary`: with `settings` alone, whatever the user's files and variables say, and nothing of another
    Python."""
    kept = {name: value for name, value in java_environment(environment).items() if not name.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV"))}
    return {**kept, **settings, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "TMPDIR": str(temporary)}
