"""Fetches jars once, with Spark's own resolver: Delta's into the folder that `conf/spark-defaults.conf` names, and with `kafka` those that
`make bench-kafka` compares with.

Of Delta's jars, those that Spark has, too, are left out, because older ones on the same class path would replace Spark's own. The folder gets its
name only when it is complete, so an interrupted run leaves no result. Run by `make`, in the project's folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyspark

from waltz_log.cli.checks import DELTA_COORDINATES, DELTA_JARS, DELTA_JARS_MARKER, jars_complete

TIMEOUT_S = 900
BYTES_NEEDED = 500_000_000


@dataclass(frozen=True)
class Wanted:
    """`first`: the beginning of the name of a jar that must arrive. `marker`: the contents of the folder's file COORDINATES. `beside_spark`: whether
    the jars share a class path with those of Spark."""

    whose: str
    coordinates: str
    folder: Path
    first: str
    again: str
    marker: str
    beside_spark: bool


DELTA = Wanted("Delta's", DELTA_COORDINATES, DELTA_JARS, "io.delta_delta-spark", "make setup", DELTA_JARS_MARKER, True)
KAFKA_COORDINATES = "org.apache.kafka:kafka_2.13:4.1.0,org.apache.kafka:kafka-tools:4.1.0"
KAFKA = Wanted("Kafka's", KAFKA_COORDINATES, Path(".cache/kafka-jars"), "org.apache.kafka_kafka_2.13", "make bench-kafka", KAFKA_COORDINATES, False)


def artifact(jar: str) -> str:
    """`aircompressor` for Spark's `aircompressor-2.0.3.jar`."""
    return re.sub(r"-\d.*", "", jar)


def sparks_own(jars: Iterable[str], of_spark: Iterable[str]) -> list[str]:
    """Of `jars`, named as the resolver names them (`io.airlift_aircompressor-2.0.2.jar`), those that Spark has in some version."""
    artifacts = {artifact(jar) for jar in of_spark}
    return [jar for jar in jars if artifact(jar.partition("_")[2]) in artifacts]


def fetch(project: Path, wanted: Wanted) -> str | None:
    """The error in one sentence, or None."""
    target = project / wanted.folder
    if jars_complete(target, wanted.marker):
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    again = f"then run {wanted.again} again"
    no_space = f"no space for {wanted.whose} jars; free {BYTES_NEEDED // 1_000_000} MB, {again}"
    if shutil.disk_usage(target.parent).free < BYTES_NEEDED:
        return no_space
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="resolving-") as folder:
        work = Path(folder)
        nothing = work / "nothing.py"
        nothing.write_text("")
        empty = work / "spark-defaults.conf"
        empty.write_text("")
        environment = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "SPARK_CONF_DIR")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
        environment["PYSPARK_PYTHON"] = sys.executable
        command = [str(Path(sys.executable).with_name("spark-submit")), "--properties-file", str(empty), "--packages", wanted.coordinates]
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
                return f"{wanted.whose} jars did not arrive within {TIMEOUT_S // 60} minutes; check the network, {again} (log: {log})"
        jars = work / "ivy" / "jars"
        if "No space left on device" in log.read_text(errors="replace"):
            return no_space
        if done.returncode != 0 or not list(jars.glob(f"{wanted.first}*.jar")):
            return f"{wanted.whose} jars could not be fetched; a network to Maven Central is needed once, {again} (log: {log})"
        if wanted.beside_spark:
            of_spark = [jar.name for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")]
            for name in sparks_own([jar.name for jar in jars.glob("*.jar")], of_spark):
                (jars / name).unlink()
        (jars / "COORDINATES").write_text(f"{wanted.marker}\n")
        if target.exists():
            shutil.rmtree(target)
        jars.rename(target)
    log.unlink()
    return None


def main() -> int:
    wanted = KAFKA if sys.argv[1:] == ["kafka"] else DELTA
    try:
        problem = fetch(Path.cwd(), wanted)
    except OSError as error:
        problem = f"{wanted.whose} jars could not be kept: {error.strerror} at {error.filename}"
    if problem is not None:
        print(f"{wanted.again.removeprefix('make ')}: {problem}", file=sys.stderr)
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
