"""What `make setup` leaves where Spark does not start: the beginning of a real driver."""

from __future__ import annotations

from pathlib import Path

from tools.spark_start import ARCHIVE, archive_classes


def test_a_driver_that_fails_leaves_no_archive_and_says_where_its_log_is(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ARCHIVE).write_bytes(b"of an older Spark")
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions -Xmx1m -XX:SharedArchiveFile={ARCHIVE}\n")
    problem = archive_classes(tmp_path)
    assert problem is not None
    assert "Spark starts some seconds slower" in problem
    log = tmp_path / ".cache" / "spark-start.log"
    assert str(log) in problem
    assert "Xmx" in log.read_text()
    assert [path.name for path in (tmp_path / ".cache").iterdir()] == ["spark-start.log"]
