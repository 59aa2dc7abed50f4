"""Builds what `spark-submit` needs to run the jobs on a cluster where nothing of this project is installed: `make dist`.

The folder holds the project's wheel; `environment.tar.gz`, the wheel with everything it needs as installed and tested here, and a relocatable
`bin/python` (Spark itself and Python are the cluster's); Delta's jars; the jobs; a properties file; `sbom.cdx.json`, the list of what is packed.
Nothing is fetched: what runs here is what is packed. So build on the system that the cluster runs: packages hold compiled code of one platform and
one Python version.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.sbom import bill_of_materials
from waltz_log.cli.checks import DELTA_JARS

PROJECT = "waltz-platform"
EXTRA = "spark"

THE_CLUSTERS_OWN = frozenset({"pyspark", "py4j"})
"""Spark puts them on the path of every Python it starts; its own version of them is the right one."""

LEFT_OUT = frozenset({"tests", "include"})
"""Folders of packages that no job runs: a seventh of the whole."""

LAUNCHER = """\
#!/bin/sh
# Python with the packages beside this file, wherever the archive was unpacked. The interpreter is the host's, of the version that the packages were
# compiled for; name it in WALTZ_PYTHON where it is not on the path. What the caller has on its path comes first: Spark puts itself there.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$here/lib"
export PYTHONPATH
exec "${WALTZ_PYTHON:-python@VERSION@}" "$@"
"""


def needed(name: str, extras: frozenset[str] = frozenset(), found: dict[str, frozenset[str]] | None = None) -> dict[str, frozenset[str]]:
    """The installed distributions that `name` with `extras` needs and a cluster does not have, itself included; with the extras asked of each."""
    found = {} if found is None else found
    key = canonicalize_name(name)
    asked = found.get(key)
    if key in THE_CLUSTERS_OWN or (asked is not None and extras <= asked):
        return found
    found[key] = extras | (asked or frozenset())
    for text in importlib.metadata.distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *sorted(extras))):
            needed(requirement.name, frozenset(requirement.extras), found)
    return found


def installed_files(name: str) -> Iterator[tuple[PurePosixPath, Path]]:
    """The files of an installed distribution: path below the folder of packages, and where it is. Without scripts, which are in another folder."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        path = PurePosixPath(*file.parts)
        if ".." not in path.parts and not path.is_absolute() and LEFT_OUT.isdisjoint(path.parts[:-1]):
            place = Path(str(distribution.locate_file(file)))
            if place.is_file():
                yield path, place


def build_wheel(project: Path, target: Path) -> Path:
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--wheel-dir", name, str(project)], check=True, timeout=120)
        (made,) = Path(name).glob("*.whl")
        return Path(shutil.move(made, target / made.name))


def build_environment(wheel: Path, target: Path, *, level: int) -> Path:
    """The archive. Modification times are kept, because Python uses compiled files only if they match their sources."""
    with tarfile.open(target, "w:gz", compresslevel=level) as archive:
        launcher = LAUNCHER.replace("@VERSION@", f"{sys.version_info.major}.{sys.version_info.minor}")
        _add(archive, "bin/python", launcher.encode(), mode=0o755)
        with zipfile.ZipFile(wheel) as packed:
            for member in packed.infolist():
                if not member.is_dir():
                    _add(archive, f"lib/{member.filename}", packed.read(member), mode=0o644)
        for name in sorted(needed(PROJECT, frozenset({EXTRA}))):
            if name != PROJECT:
                for path, place in installed_files(name):
                    archive.add(place, f"lib/{path}", recursive=False, filter=_without_owner)
    return target


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), mode, int(time.time())
    archive.addfile(member, io.BytesIO(content))


def build(project: Path, target: Path, *, level: int) -> None:
    """Fills `target` from the start. The folder gets its name only when it is complete."""
    jars = sorted((project / DELTA_JARS).glob("*.jar"))
    if not jars:
        raise FileNotFoundError(f"no jars in {DELTA_JARS}; run make setup")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as name:
        work = Path(name) / target.name
        work.mkdir()
        wheel = build_wheel(project, work)
        build_environment(wheel, work / "environment.tar.gz", level=level)
        materials = bill_of_materials(PROJECT, needed(PROJECT, frozenset({EXTRA})), made_s=int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
        (work / "sbom.cdx.json").write_text(materials)
        (work / "jars").mkdir()
        for jar in jars:
            shutil.copy2(jar, work / "jars" / jar.name)
        (work / "jobs").mkdir()
        for job in sorted((project / "jobs").glob("*.py")):
            shutil.copy2(job, work / "jobs" / job.name)
        shutil.copy2(project / "conf" / "spark-cluster.conf", work / "spark-cluster.conf")
        if target.exists():
            shutil.rmtree(target)
        work.rename(target)


def main() -> int:
    parser = argparse.ArgumentParser(prog="dist", description="What spark-submit needs to run the jobs on a cluster.")
    parser.add_argument("--directory", type=Path, default=Path("dist"), help="filled anew (dist)")
    parser.add_argument("--level", type=int, default=6, help="of gzip, 0 to 9: a test wants it soon, not small (6)")
    arguments = parser.parse_args()
    try:
        build(Path(__file__).resolve().parents[1], arguments.directory.resolve(), level=arguments.level)
    except (OSError, subprocess.SubprocessError, importlib.metadata.PackageNotFoundError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    for path in sorted(arguments.directory.iterdir()):
        size = sum(each.stat().st_size for each in path.rglob("*")) if path.is_dir() else path.stat().st_size
        print(f"{size / 1_000_000:8.1f} MB  {arguments.directory / path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
