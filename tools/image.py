"""Prepares the build folder of the container images, and builds one: `make image`.

The folder holds the Containerfile, the wheel, the tested versions, Delta's jars and the jobs. `--wheelhouse` adds the packages that the nodes need,
so that the build needs no package index; they are those of this interpreter, so its version must be the image's. Without it, pip inside the build
gets them from the index that it is configured for.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.dist import build_wheel
from waltz_log.cli.checks import DELTA_JARS

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("podman", "docker")
TARGETS = {"node": "waltz", "jobs": "waltz-jobs"}
"""Each target of the Containerfile with the name of its image."""


def prepare(project: Path, target: Path, *, wheelhouse: bool) -> Path:
    """Fills `target`, and replaces what is there. Raises `FileNotFoundError` if the jars are missing."""
    jars = sorted((project / DELTA_JARS).glob("*.jar"))
    if not jars:
        raise FileNotFoundError(f"no jars in {DELTA_JARS}; run make setup")
    shutil.rmtree(target, ignore_errors=True)
    for folder in ("wheelhouse", "jars", "jobs"):
        (target / folder).mkdir(parents=True)
    shutil.copy2(project / "conf" / "deploy" / "Containerfile", target)
    shutil.copy2(project / "constraints.txt", target)
    for jar in jars:
        shutil.copy2(jar, target / "jars")
    for job in sorted((project / "jobs").glob("*.py")):
        shutil.copy2(job, target / "jobs")
    wheel = build_wheel(project, target / "wheelhouse")
    if wheelhouse:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--wheel-dir", str(wheel.parent)]
        subprocess.run([*command, "--constraint", str(target / "constraints.txt"), f"{wheel}[server]"], check=True, timeout=600)
    return target


def build(folder: Path, target: str) -> int:
    """Returns the exit code of the container engine."""
    engine = next((each for each in ENGINES if shutil.which(each)), None)
    if engine is None:
        print(f"image: no {' or '.join(ENGINES)} found; install one (Debian: apt-get install podman), then build {folder}", file=sys.stderr)
        return 1
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    tags = [option for tag in (version, "latest") for option in ("--tag", f"{TARGETS[target]}:{tag}")]
    # The format of Docker keeps the health check.
    form = ["--format", "docker"] if engine == "podman" else []
    return subprocess.run([engine, "build", *form, "--target", target, *tags, str(folder)], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="image", description="Prepares the folder of the container images and builds one.")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "image", help="filled anew (build/image)")
    parser.add_argument("--target", choices=sorted(TARGETS), default="node", help="the image to build (node)")
    parser.add_argument("--wheelhouse", action="store_true", help="also get the packages that nodes need, for a build without an index")
    parser.add_argument("--prepare", action="store_true", help="prepare the folder, build nothing")
    arguments = parser.parse_args()
    try:
        folder = prepare(ROOT, arguments.directory.resolve(), wheelhouse=arguments.wheelhouse)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0 if arguments.prepare else build(folder, arguments.target)


if __name__ == "__main__":
    sys.exit(main())
