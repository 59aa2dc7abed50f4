"""Decides whether this sink can write a table safely: the table's store must let exactly one writer create a version, and the table's log must hold
every commit.

Delta's protocol requires that a commit is created only if it does not exist ("Delta Log Entries" in PROTOCOL.md). Without that, two drivers can
both write version N. The writer that came first loses its rows. No mark can prevent this, because both saw the marks of version N - 1. The table's
scheme and Spark's configuration decide which class of Delta creates commits (Delta's `DelegatingLogStore`). A class is trusted only for the schemes
that it is made for, and an unknown class never. At `file:` paths Delta's classes are safe within one JVM only. There, everything that commits does it
within `one_committer`, which lets one process at a time commit (`local_lock`).

A catalog-managed table keeps commits elsewhere before they are published in `_delta_log`. A writer that reads only `_delta_log` misses commits, so
such a table is refused, whatever the store.

A changed setting does not stop a writer that was started before: Delta reads this configuration once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final  # Any: py4j's objects have no types
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from waltz_delta.base.local_lock import locked, require_lockable
from waltz_delta.errors import UnsafeTable
from waltz_log.loggers import get_logger

__all__ = [
    "LOCAL",
    "SINGLE_DRIVER",
    "catalog_features",
    "is_single_driver",
    "located",
    "named_store",
    "one_committer",
    "refuse_catalog",
    "require_one_winner",
    "require_own_commits",
    "scheme_of",
    "unsafe_store",
]

log = get_logger(__name__)

SINGLE_DRIVER: Final = "spark.waltz.singleDriver"
"""Spark setting. `true`: the operator guarantees that no two drivers ever write one table at the same time, not even a hanging one and its
replacement."""

LOCAL: Final = "file"
_HADOOP: Final = frozenset({"hdfs", "viewfs", "webhdfs", LOCAL})
_AZURE: Final = frozenset({"abfs", "abfss", "wasb", "wasbs", "adl"})
_S3: Final = frozenset({"s3", "s3a", "s3n"})

_TRUSTED: Final[Mapping[str, frozenset[str]]] = {
    "HDFSLogStore": _HADOOP,
    "LocalLogStore": frozenset({LOCAL}),
    "AzureLogStore": _AZURE,
    "GCSLogStore": frozenset({"gs"}),
    "S3DynamoDBLogStore": _S3,
    "IBMCOSLogStore": frozenset({"cos"}),
    "OracleCloudLogStore": frozenset({"oci"}),
}
"""Classes of Delta that create a commit only if it is not there, and the schemes for which they do: at `file:` within `one_committer`."""

_DEFAULTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_HADOOP, "HDFSLogStore"),
    **dict.fromkeys(_AZURE, "AzureLogStore"),
    **dict.fromkeys(_S3, "S3SingleDriverLogStore"),
    "gs": "GCSLogStore",
}
"""What Delta uses if nothing is configured; for any other scheme `HDFSLogStore`."""

_PACKAGES: Final = ("io.delta.storage.", "org.apache.spark.sql.delta.storage.")

_CATALOG_FEATURES: Final = ("catalogmanaged", "catalogowned", "coordinatedcommits", "managedcommit")
"""Prefixes of the table features whose commits a catalog or a coordinator holds; `coordinatedCommits-preview` was the first of them."""

_BLOCKED: Final = "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED"

_FEATURE_PROPERTY: Final = "delta.feature."
_COORDINATOR_PROPERTY: Final = "delta.coordinatedcommits."

_judged: dict[tuple[str, str, bool], str | None] = {}
"""By application, path and `SINGLE_DRIVER`: the directory to lock before a commit, None where no lock is needed."""

_UNLOCKED: Final = "two drivers could both write one table version there, because no lock is acquired: scheme=file"


def scheme_of(path: str, default: str = "file") -> str:
    """The scheme of a path. `default`: the scheme of the default file system, for a path without one."""
    scheme = urlsplit(path).scheme.lower()
    return scheme or default


def unsafe_store(scheme: str, configured: Callable[[str], str | None]) -> str | None:
    """Why two drivers could overwrite each other's rows at the scheme, and what to set; None if only one can create a version. `configured` returns
    the value of a key of Spark's configuration."""
    found = _named_store(scheme, configured)
    package, _, name = (found or "").rpartition(".")
    if found is None:
        name = _DEFAULTS.get(scheme, "HDFSLogStore")
    if (found is None or f"{package}." in _PACKAGES) and scheme in _TRUSTED.get(name, frozenset()):
        return None
    store = f"Delta's default, {name}" if found is None else found
    ways = [f"set {SINGLE_DRIVER}=true where you guarantee that one driver alone writes it"]
    if scheme in _S3:
        ways.insert(0, f"set spark.delta.logStore.{scheme}.impl=io.delta.storage.S3DynamoDBLogStore, for every writer and with the same table")
    reason = f"two drivers could both write one table version there, and one would lose its rows: scheme={scheme} log_store={store}"
    return f"{reason}. To write it, {', or '.join(ways)}"


def _named_store(scheme: str, configured: Callable[[str], str | None]) -> str | None:
    keys = ("spark.delta.logStore.class", f"spark.delta.logStore.{scheme}.impl")
    return next((value for key in keys if (value := configured(key) or configured(key.removeprefix("spark.")))), None)


def named_store(spark: SparkSession, scheme: str) -> str | None:
    """The log store that Spark's configuration names for the scheme; None if it is Delta's default."""
    return _named_store(scheme, spark.sparkContext.getConf().get)


def catalog_features(features: Iterable[str], properties: Mapping[str, str]) -> list[str]:
    """The features and properties which show that a catalog or a coordinator holds the table's commits, sorted."""
    asked = [name[len(_FEATURE_PROPERTY) :] for name in properties if name.lower().startswith(_FEATURE_PROPERTY)]
    found = {name for name in (*features, *asked) if name.lower().startswith(_CATALOG_FEATURES)}
    return sorted(found | {name for name in properties if name.lower().startswith(_COORDINATOR_PROPERTY)})


def require_own_commits(path: str, features: Iterable[str], properties: Mapping[str, str]) -> None:
    """Raises `UnsafeTable` for a table that is, or is to become, catalog-managed."""
    if found := catalog_features(features, properties):
        reason = f"it is managed by a catalog, which holds commits that its log does not show: {', '.join(found)}"
        raise UnsafeTable(path=path, reason=f"{reason}. Land in a table of its own path, without that feature")


def refuse_catalog(path: str, error: BaseException) -> None:
    """Raises `UnsafeTable` if such a feature is the reason that Delta did not open the table."""
    message = str(error).partition("\n\tat ")[0]  # before the Java stack
    words = {word.strip(".,:;'\"`[]()") for word in message.split()}
    if _BLOCKED in words:
        words.add("catalogManaged")  # Delta knows the feature, and says so without its name
    require_own_commits(path, words, {})


def require_one_winner(spark: SparkSession, path: str) -> None:
    """Raises `UnsafeTable` if the table's store would let two drivers write one version, unless `SINGLE_DRIVER` says that there is only one
    driver."""
    _directory_to_lock(spark, path)


@contextmanager
def one_committer(spark: SparkSession, path: str) -> Iterator[None]:
    """Everything that creates a version of the table runs within this. At a `file:` path no other process of this sink commits meanwhile. Raises
    `UnsafeTable`; `TableLocked` if another process commits for too long."""
    directory = _directory_to_lock(spark, path)
    if directory is None:
        yield
        return
    with locked(directory):
        yield


def is_single_driver(spark: SparkSession) -> bool:
    """Whether the operator guarantees one driver for each table: a setting of the session, which can change."""
    return str(spark.conf.get(SINGLE_DRIVER, "false")).lower() == "true"


def _directory_to_lock(spark: SparkSession, path: str) -> str | None:
    session: Any = spark
    single = is_single_driver(session)
    judged = (str(session.sparkContext.applicationId), path, single)
    if judged not in _judged:
        _judged[judged] = _judge(session, path, single)
    return _judged[judged]


def located(session: Any, path: str) -> tuple[str, str]:
    """The scheme of a table's path, and the path as its file system names it: for `file` a directory of this machine. `session`: a `SparkSession`;
    `Any`: py4j's objects have no types."""
    hadoop = session._jvm.org.apache.hadoop.fs
    settings = session._jsparkSession.sessionState().newHadoopConf()
    scheme = scheme_of(path, str(hadoop.FileSystem.getDefaultUri(settings).getScheme() or LOCAL).lower())
    if scheme != LOCAL:
        return scheme, path
    place = hadoop.Path(path)
    return scheme, str(place.getFileSystem(settings).makeQualified(place).toUri().getPath())


def _judge(session: Any, path: str, single: bool) -> str | None:
    scheme, directory = located(session, path)
    configuration = session.sparkContext.getConf()  # Delta asks the context, not the session
    reason = unsafe_store(scheme, configuration.get)
    if reason is not None and not single:
        raise UnsafeTable(path=path, reason=reason)
    if single and (reason is not None or scheme == LOCAL):
        log.warning("table restricted to a single driver", path=path, setting=SINGLE_DRIVER, otherwise=reason or _UNLOCKED)
    if single or scheme != LOCAL:
        return None
    require_lockable(directory)
    return directory
