"""What a job says about a path in a file system for which Spark has no jar."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from waltz_delta.base.file_systems import missing_jar, require_file_system
from waltz_log.errors import InvalidSetting


class _Unknown(Py4JJavaError):  # type: ignore[misc]
    def __init__(self) -> None:
        """Without a JVM."""


def _session(*known: str) -> Any:
    """What `require_file_system` asks of Spark."""

    def file_system_class(scheme: str, configuration: object) -> None:
        if scheme not in known:
            raise _Unknown

    version = SimpleNamespace(VersionInfo=SimpleNamespace(getVersion=lambda: "3.5.0"))
    hadoop = SimpleNamespace(fs=SimpleNamespace(FileSystem=SimpleNamespace(getFileSystemClass=file_system_class)), util=version)
    state = SimpleNamespace(newHadoopConf=lambda: None)
    return SimpleNamespace(
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop))), _jsparkSession=SimpleNamespace(sessionState=lambda: state)
    )


def test_a_bucket_that_spark_cannot_reach_is_refused_with_the_jar_to_add() -> None:
    with pytest.raises(InvalidSetting, match=r"s3a://lake/legs is in a file system that Spark lacks; .* org.apache.hadoop:hadoop-aws:3.5.0"):
        require_file_system(_session("file"), "s3a://lake/legs", "table")
    require_file_system(_session("file", "s3a"), "s3a://lake/legs", "table")
    require_file_system(_session("file"), "/tables/legs", "table")
    require_file_system(_session("file"), "file:/tables/legs", "table")


@pytest.mark.parametrize(
    ("scheme", "advice"), [("s3", "s3a://"), ("abfss", "hadoop-azure:3.5.0"), ("gs", "gcs-connector,"), ("cosn", "the file system cosn")]
)
def test_each_kind_of_store_has_its_own_advice(scheme: str, advice: str) -> None:
    assert advice in missing_jar(scheme, "3.5.0")
