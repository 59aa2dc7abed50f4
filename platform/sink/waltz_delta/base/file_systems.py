"""Whether Spark can reach the file system of a path at all: those of object stores come in jars of their own, which Spark does not bring."""

from __future__ import annotations

from typing import Any, Final  # py4j's objects have no types
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from waltz_log.errors import InvalidSetting

__all__ = ["has_file_system", "missing_jar", "require_file_system"]

_JARS: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs", "adl"), "org.apache.hadoop:hadoop-azure"),
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
}


def missing_jar(scheme: str, hadoop_version: str) -> str:
    """What to do where Spark has no file system for the scheme."""
    if scheme in ("s3", "s3n"):
        return "Spark writes S3 at s3a:// paths: change the scheme"
    jar = _JARS.get(scheme)
    if jar is None:
        return f"add the jar of the file system {scheme} with --packages or spark.jars"
    return f"start Spark with --packages {jar}{f':{hadoop_version}' if jar.startswith('org.apache.hadoop') else ''}, which also fetches what it needs"


def require_file_system(spark: SparkSession, path: str, what: str) -> None:
    """Raises `InvalidSetting` if Spark has no file system for the path. Sends no request. `what`: the setting that names the path."""
    scheme = urlsplit(path).scheme.lower()
    if not scheme or has_file_system(spark, scheme):
        return
    session: Any = spark
    version = str(session._jvm.org.apache.hadoop.util.VersionInfo.getVersion())
    raise InvalidSetting(name=what, reason=f"{path} is in a file system that Spark lacks; {missing_jar(scheme, version)}", nearest=None)


def has_file_system(spark: SparkSession, scheme: str) -> bool:
    """Whether Spark has a class for the scheme. Sends no request."""
    session: Any = spark
    try:
        session._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, session._jsparkSession.sessionState().newHadoopConf())
    except Py4JJavaError:
        return False
    return True
