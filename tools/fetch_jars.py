"""Fetches Delta's jars once, with Spark's own resolver, into the folder that `conf/spark-defaults.conf` names.

The folder gets its name only when it is whole, so an interrupted run leaves nothing that could be taken for a result. Run by `make setup`, in the
project's folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from waltz_log.cli.checks import DELTA_COORDINATES, DELTA_JARS, delta_jars_complete

TIMEOUT_S = 900
BYTES_NEEDED = 500_000_000


def fetch(project: Path) -> str | None:
    """What went wrong, in one sentence, or None."""
    target = project / DELTA_JARS
    if delta_jars_complete(target):
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    no_space = f"no space for Delta's jars; free {BYTES_NEEDED // 1_000_000} MB and run make setup again"
    if shutil.disk_usage(target.parent).free < BYTES_NEEDED:
        return no_space
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="resolving-") as name:
        work = Path(name)
        nothing = work / "nothing.py"
        nothing.write_text("")
        empty = work / "spark-defaults.conf"
        empty.write_text("")
        environment = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "SPARK_CONF_DIR")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
        environment["PYSPARK_PYTHON"] = sys.executable
        command = [str(Path(sys.executable).with_name("spark-submit")), "--properties-file", str(empty), "--packages", DELTA_COORDINATES]
        log = target.parent / "resolving.log"
        with log.open("w") as told:
            try:
                done = subprocess.run(
                    [*command, "--conf", f"spark.jars.ivy={work / 'ivy'}", str(nothing)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=told,
                    stderr=told,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"Delta's jars did not arrive within {TIMEOUT_S // 60} minutes; check the network and run make setup again (log: {log})"
        jars = work / "ivy" / "jars"
        if "No space left on device" in log.read_text(errors="replace"):
            return no_space
        if done.returncode != 0 or not list(jars.glob("io.delta_delta-spark*.jar")):
            return f"Delta's jars could not be fetched; a network to Maven Central is needed once, then run make setup again (log: {log})"
        (jars / "COORDINATES").write_text(f"{DELTA_COORDINATES}\n")
        if target.exists():
            shutil.rmtree(target)
        jars.rename(target)
    log.unlink()
    return None


def main() -> int:
    try:
        problem = fetch(Path.cwd())
    except OSError as error:
        problem = f"Delta's jars could not be kept: {error.strerror} at {error.filename}"
    if problem is not None:
        print(f"setup: {problem}", file=sys.stderr)
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
