"""Each Spark configuration in conf/ starts a session that prints what the job prints, and little else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

JOB = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.appName("quiet").getOrCreate()
stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
# One batch and then nothing to do: stopping a query in the middle of a batch logs an exception of its own.
query = stream.writeStream.format("noop").option("checkpointLocation", "checkpoint").trigger(processingTime="1 hour").start()
while not query.recentProgress:
    query.awaitTermination(0.2)
print("progress of the job")
query.stop()
spark.stop()
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "conf").glob("spark-*.conf")))
def test_a_session_prints_warnings_and_errors_only(tmp_path: Path, spark_environment: dict[str, str], name: str) -> None:
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    (tmp_path / "job.py").write_text(JOB)
    here = {"spark.master": "local[1]", "spark.archives": "", "spark.pyspark.python": sys.executable, "spark.pyspark.driver.python": sys.executable}
    here |= {"spark.jars": "", "spark.driver.extraClassPath": f"{ROOT / '.cache' / 'delta-jars'}/*"}
    if not str(ROOT).isascii():
        here["spark.ui.enabled"] = "false"  # Spark's web server logs a trace for files whose path has an umlaut
    options = [part for name, value in here.items() for part in ("--conf", f"{name}={value}")]
    command = [str(Path(sys.prefix) / "bin" / "spark-submit"), "--properties-file", str(ROOT / "conf" / name), *options, "job.py"]
    done = subprocess.run(command, cwd=tmp_path, env=spark_environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "progress of the job"
    reported = done.stderr.splitlines()
    assert not [line for line in reported if "[Stage" in line]
    assert len(reported) <= 15, "\n".join(reported)
