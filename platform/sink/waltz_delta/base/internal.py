"""Everything that reaches below the public interfaces of Spark and Delta, through py4j, in one place.

Delta's public writers cannot set a transaction identifier per log partition in the commit that adds the rows; its own streaming sink does it with
these classes. Verified with Delta 4.4.0 on Spark 4.2; `tests/e2e/test_sink_contract.py` holds each call to what we rely on and fails loudly on
another version, and `check_versions` refuses one at the start. Not available over Spark Connect, which has no JVM to reach.

Decides nothing about marks: `append` and `upsert` do.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any  # py4j's objects have no types

from delta import exceptions as conflicts
from py4j.java_gateway import JavaClass
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from waltz_delta.base.checkpoint_pace import checkpoint_pace, with_interval
from waltz_delta.base.checkpoints import CHECKPOINTS
from waltz_delta.base.log_store import one_committer, refuse_catalog, require_one_winner, require_own_commits
from waltz_delta.errors import NotADeltaTable, UnsupportedDelta

__all__ = [
    "DELTA_VERSION",
    "TableTransaction",
    "absolute_path",
    "attempted",
    "batch_offsets",
    "check_versions",
    "checkpoint_of",
    "cloned_session",
    "counted",
    "hadoop_configuration",
    "is_conflict",
    "lost_held_rows",
    "observed",
    "read_text",
    "refuse_damaged_log",
    "release_held_rows",
    "require_jvm",
    "table_version",
    "transaction_versions",
    "varies",
    "write_text",
]

DELTA_VERSION = "4.4.0"

OBSERVED_WITHIN_S = 10.0
"""Spark reports observed metrics just after the job, from another thread. After this time the caller counts the rows itself."""

_INCOMPLETE_LOG = ("DELTA_TRUNCATED_TRANSACTION_LOG", "DELTA_VERSIONS_NOT_CONTIGUOUS")
_MISSING_CHECKPOINT = "DELTA_MISSING_PART_FILES"
_MIXED_COMMIT = re.compile(r"ChecksumException: Checksum error: (?:\S*/)?(\d{20}\.json)\b")

_LOST_ROWS = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

_CONVERTERS = "scala.jdk.javaapi.CollectionConverters"

_CONFLICTS = (
    conflicts.ConcurrentAppendException,
    conflicts.ConcurrentDeleteDeleteException,
    conflicts.ConcurrentDeleteReadException,
    conflicts.ConcurrentTransactionException,
    conflicts.ConcurrentWriteException,
    conflicts.DeltaConcurrentModificationException,
    conflicts.MetadataChangedException,
    conflicts.ProtocolChangedException,
)


def require_jvm(spark: SparkSession) -> Any:
    """The session's JVM. Raises `UnsupportedDelta` for a session without one."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise UnsupportedDelta(expected=DELTA_VERSION, got="a Spark Connect session, which has no JVM to reach")
    return jvm


def check_versions(spark: SparkSession) -> None:
    """`UnsupportedDelta` unless the session runs the Delta that this module was verified with."""
    jvm = require_jvm(spark)
    try:
        got = str(jvm.io.delta.package.VERSION())
    except TypeError:
        raise UnsupportedDelta(expected=DELTA_VERSION, got="none; add the jars of delta-spark to the session") from None
    if got != DELTA_VERSION:
        raise UnsupportedDelta(expected=DELTA_VERSION, got=got)


class TableTransaction:
    """One optimistic transaction on a table. Versions read through it are conflict-checked: if another commit changes one of them first, ours
    fails."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._java = _Java(spark)
        self._session: Any = spark._jsparkSession
        _activate(self._java, self._session)
        # Most readers convert INT96, Spark's default, to nanoseconds: one date after 2262 makes the whole table unreadable to them.
        self._session.conf().set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._spark, self._path = spark, path
        try:
            self._start()
        except Exception as error:
            refuse_catalog(path, error)
            if _MISSING_CHECKPOINT not in _first_line(error):
                refuse_damaged_log(path, error)
                raise
            self._start_from_files()
        self._versions: dict[str, int] | None = None
        # Also for reading: a catalog may hold commits, with marks in them, that the log does not show.
        require_own_commits(path, self._features(), {})

    def _start(self) -> None:
        self._log = self._java("org.apache.spark.sql.delta.DeltaLog").forTable(self._session, self._path)
        self._transaction = self._log.startTransaction()

    def _start_from_files(self) -> None:
        """Ignores Delta's cached state of the table. After the table was replaced, the cache names a checkpoint that no longer exists."""
        self._java("org.apache.spark.sql.delta.DeltaLog").clearCache()
        try:
            self._start()
        except Exception as error:
            refuse_damaged_log(self._path, error)
            raise

    def _features(self) -> list[str]:
        protocol = json.loads(str(self._transaction.protocol().json()))["protocol"]
        return [*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())]

    @property
    def exists(self) -> bool:
        """Whether there is a table yet."""
        return self.read_version >= 0

    @property
    def read_version(self) -> int:
        """The table version that this transaction sees; -1 if there is no table."""
        return int(self._transaction.readVersion())

    @property
    def table_id(self) -> str:
        """Delta's id of the table, constant from its creation to its removal; empty if there is no table."""
        return str(self._transaction.metadata().id()) if self.exists else ""

    def version(self, app_id: str) -> int | None:
        """Like Delta's own `txnVersion`: returns the version, and from now on a concurrent commit that changes it makes ours fail."""
        getattr(self._transaction.readTxn(), "$plus$eq")(app_id)
        return self.versions().get(app_id)

    def versions(self) -> dict[str, int]:
        """All identifiers, without a conflict check. Read from the checksum file of the last commit if it has them: to rebuild the table's state for
        them, as Delta does, costs as much as writing a small batch."""
        if self._versions is None:
            snapshot = self._transaction.snapshot()
            checksum = snapshot.checksumOpt()
            if checksum.isDefined() and checksum.get().setTransactions().isDefined():
                listed = self._java(_CONVERTERS).asJava(checksum.get().setTransactions().get())
                self._versions = {str(found.appId()): int(found.version()) for found in _each(listed)}
            else:
                self._versions = self._pairs(snapshot.transactions())
        return self._versions

    def versions_at(self, version: int) -> dict[str, int]:
        """All identifiers as they were at an older version of the table."""
        usual = [getattr(self._log, f"getSnapshotAt$default${n}")() for n in (2, 3, 4)]
        return self._pairs(self._log.getSnapshotAt(version, *usual).transactions())

    def _pairs(self, versions: Any) -> dict[str, int]:
        entries = self._java("java.util.ArrayList")(self._java(_CONVERTERS).asJava(versions).entrySet())
        return {str(each.getKey()): int(each.getValue()) for each in _each(entries)}

    def commits(self, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Version and `commitInfo` of the newest commits, newest first, as far back as the log's files reach. `commitInfo` is the first line of a
        commit."""
        file = self._java("org.apache.hadoop.fs.Path")
        files = self._log.logPath().getFileSystem(self._session.sessionState().newHadoopConf())
        for version in range(self.read_version, max(-1, self.read_version - count), -1):
            place = file(self._log.logPath(), f"{version:020d}.json")
            if not files.exists(place):
                return
            reader = self._java("java.io.BufferedReader")(self._java("java.io.InputStreamReader")(files.open(place), "UTF-8"))
            try:
                line = reader.readLine()
            except Exception as error:
                refuse_mixed_commit(self._path, error)
                raise
            finally:
                reader.close()
            yield version, json.loads(line).get("commitInfo") or {}

    def version_until(self, before: int, timestamp: str) -> int:
        """The last version below `before` that was committed at this time or earlier."""
        from delta.tables import DeltaTable

        until = f.lit(timestamp).cast("timestamp")
        earlier = DeltaTable.forPath(self._spark, self._path).history().where((f.col("version") < before) & (f.col("timestamp") <= until))
        return int(earlier.agg(f.max("version")).collect()[0][0])

    def refuse_strange_checksum(self) -> None:
        """Raises `NotADeltaTable` if the checksum file of the newest commit belongs to another table. A query that commits while its table is
        replaced leaves such a file, and Delta would read the table's id, columns and identifiers from it."""
        checksum = self._transaction.snapshot().checksumOpt()
        if not checksum.isDefined() or not checksum.get().txnId().isDefined():
            return
        for version, told in self.commits(1):
            if told.get("txnId") not in (None, str(checksum.get().txnId().get())):
                reason = (
                    f"its checksum file {version:020d}.crc is of another table that was at the path; stop the table's queries and delete the file"
                )
                raise NotADeltaTable(path=self._path, reason=reason)

    def lost_to_another(self, error: BaseException) -> bool:
        """Whether our commit failed because another one came first. If the table was created, removed or replaced meanwhile, the failure can be any
        error of a file or a schema; that counts too."""
        if is_conflict(error):
            return True
        try:
            return TableTransaction(self._spark, self._path).table_id != self.table_id
        except Exception:  # the first error says more
            return False

    def properties(self) -> dict[str, str]:
        """The properties of the table; empty if there is none."""
        return dict(json.loads(str(self._transaction.metadata().json()))["metaData"].get("configuration") or {})

    def schema_text(self) -> str:
        """The table's columns as Delta stores them; equal texts are equal schemas. Empty if there is no table."""
        return str(self._transaction.metadata().schemaString()) if self.exists else ""

    def rows(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        """These columns of the rows of the version that this transaction sees. Raises `NotADeltaTable` if there is no table."""
        if not self.exists:
            raise NotADeltaTable(path=self._path, reason="no table there")
        return spark.read.format("delta").option("versionAsOf", self.read_version).load(self._path).select(*columns)

    def write(self, rows: DataFrame, *, partition_by: Sequence[str], properties: Mapping[str, str]) -> Any:
        """Writes the files of the rows. No reader sees them before `commit` names them. The schema must fit; if there is no table, the commit creates
        it. Raises `UnsafeTable`."""
        require_one_winner(self._spark, self._path)
        require_own_commits(self._path, (), properties)
        none, scala = self._option(None), self._java("org.apache.spark.api.python.PythonUtils")
        options = self._java("org.apache.spark.sql.delta.DeltaOptions")(scala.toScalaMap({}), self._session.sessionState().conf())
        writer = self._java("org.apache.spark.sql.delta.commands.WriteIntoDelta")(
            self._log,
            self._java("org.apache.spark.sql.SaveMode").Append,
            options,
            scala.toSeq(list(partition_by)),
            scala.toScalaMap({} if self.exists else with_interval(properties)),
            rows._jdf,
            none,
            none,
            False,
        )
        return self._java(_CONVERTERS).asJava(writer.write(self._transaction, self._session, none, False))

    def mark(self, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        """Commits identifiers alone."""
        return self.commit(None, versions, query=query, batch=batch, metadata=metadata)

    def commit(self, written: Any, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        """Commits the result of `write` (None for no rows) and the identifiers together. Returns the table version. Raises `UnsafeTable`,
        `TableLocked`."""
        together, transaction = self._java("java.util.ArrayList")(), self._java("org.apache.spark.sql.delta.actions.SetTransaction")
        if written is not None:
            together.addAll(written)
        now = self._option(int(time.time() * 1000))
        for name, version in sorted(versions.items()):
            together.add(transaction(name, version, now))
        mode = self._java("org.apache.spark.sql.streaming.OutputMode").Append()
        operation = self._java("org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")(mode, query, batch, self._option(metadata))
        sequence = self._java(_CONVERTERS).asScala(together).toSeq()
        checkpoint_hook = getattr(self._java("org.apache.spark.sql.delta.hooks.CheckpointHook$"), "MODULE$")
        getattr(self._transaction.postCommitHooks(), "$minus$eq")(checkpoint_hook)
        with one_committer(self._spark, self._path):
            try:
                version = int(self._transaction.commit(sequence, operation))
            except Exception as error:
                refuse_mixed_commit(self._path, error)  # of the commit that came first
                raise
        pace = checkpoint_pace(int(self._log.checkpointInterval(self._transaction.metadata())))
        newest = int(self._transaction.snapshot().checkpointProvider().version())
        CHECKPOINTS.committed(self._path, version, pace, newest, self._write_checkpoint)
        return version

    def _write_checkpoint(self) -> None:
        """Writes a checkpoint of the newest version, unless the table was removed or replaced meanwhile: that checkpoint would restore the old
        table's marks without its files. Runs in its own thread."""
        _activate(self._java, self._session)
        now = self._log.update(*(getattr(self._log, f"update$default${n}")() for n in (1, 2, 3)))
        if int(now.version()) >= 0 and str(now.metadata().id()) == self.table_id:
            self._log.checkpoint()

    def _option(self, value: Any) -> Any:
        option = self._java("scala.Option")
        return option.empty() if value is None else option.apply(value)


class _Java:
    """Classes by their full names. `jvm.org.apache…` asks the JVM for each part of the name, and the JVM then searches all of its jars for a class
    called `org`. That was one sixth of the driver's time for a small batch."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._client = jvm._gateway_client

    def __call__(self, name: str) -> Any:
        return JavaClass(name, self._client)


def _each(listed: Any) -> Iterator[Any]:
    """The elements of a Java list. Python's iteration ends with an exception in Java, which PySpark translates with forty calls to the JVM."""
    return (listed.get(place) for place in range(listed.size()))


def _activate(java: _Java, session: Any) -> None:
    """Makes the session the active one of this thread. Delta reads the active session when it rebuilds a table's state, for example after a commit
    without a checksum, as a killed writer leaves it. Each Python thread has its own JVM thread, and only the one that created the session has an
    active session from the start."""
    java("org.apache.spark.sql.classic.SparkSession").setActiveSession(session)


def cloned_session(spark: SparkSession) -> SparkSession:
    """A session with the same settings, which can be changed without effect on other threads that use `spark`."""
    session: Any = spark
    return SparkSession(session.sparkContext, session._jsparkSession.cloneSession())


def transaction_versions(spark: SparkSession, path: str) -> dict[str, int]:
    """All transaction identifiers of the table as it is now; empty if there is none."""
    return TableTransaction(spark, path).versions()


def table_version(spark: SparkSession, path: str) -> int:
    """The newest version of the table; -1 if there is none."""
    return TableTransaction(spark, path).read_version


def is_conflict(error: BaseException) -> bool:
    """Whether a commit failed because another one came first. The table is as that commit left it."""
    return isinstance(error, _CONFLICTS)


def lost_held_rows(error: BaseException) -> bool:
    """Whether a job failed because an executor was lost with rows that `localCheckpoint` held there."""
    return _LOST_ROWS in str(error)


def release_held_rows(held: DataFrame) -> None:
    """Frees the rows of a `localCheckpoint` now. `DataFrame.unpersist` does not know them."""
    frame: Any = held._jdf
    frame.queryExecution().logical().rdd().unpersist(False)


def refuse_damaged_log(path: str, error: BaseException) -> None:
    """Raises `NotADeltaTable` if that is why Delta could not read the table: its log lacks commits, because a batch was committed while the table's
    files were removed or replaced by those of another table (no store refuses such a commit); or `refuse_mixed_commit` applies."""
    if any(name in _first_line(error) for name in _INCOMPLETE_LOG):
        reason = "its log lacks commits; move away what is left of the table, and delete the checkpoint"
        raise NotADeltaTable(path=path, reason=reason) from error
    refuse_mixed_commit(path, error)


def refuse_mixed_commit(path: str, error: BaseException) -> None:
    """Raises `NotADeltaTable` if the hidden checksum file of one commit is beside another one: two processes wrote one version at once."""
    if mixed := _MIXED_COMMIT.search(str(error)):
        reason = (
            f"the hidden checksum file .{mixed[1]}.crc in its log does not fit the commit {mixed[1]}; two processes wrote this version at once, one "
            "of them without this sink's lock, or the commit was changed. Stop all writers, delete that checksum file, and audit the table, because "
            "rows of the other commit can be missing"
        )
        raise NotADeltaTable(path=path, reason=reason) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n\tat ")[0]


def observed(observation: Observation) -> dict[str, int] | None:
    """What the job over the observed rows counted. None if Spark reports nothing, as for a plan that Spark found to be empty; `Observation.get` would
    then wait without end."""
    future = _future_of(observation)
    deadline = time.monotonic() + OBSERVED_WITHIN_S
    while future is not None and not future.isCompleted() and time.monotonic() < deadline:
        time.sleep(0.002)
    if future is None or not future.isCompleted():
        return None
    return {name: int(value) for name, value in observation.get.items()}


def counted(rows: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """The rows; and a function that returns how many they were, after a job over them."""
    observation = Observation()

    def count() -> int:
        found = observed(observation)
        return rows.count() if found is None else found["count"]

    return rows.observe(observation, f.count("*").alias("count")), count


def _future_of(observation: Any) -> Any:
    """The future of an `Observation`'s counts, in the JVM; None if no plan uses it. `Any`: py4j's objects have no types."""
    return None if observation._jo is None else observation._jo.future()


def varies(rows: Any) -> bool:
    """Whether a plan can give other rows each time that it runs: it asks for the time, or for something random. `Any`: a `DataFrame`."""
    plan = rows._jdf.queryExecution().analyzed()
    pattern = _Java(rows.sparkSession)("org.apache.spark.sql.catalyst.trees.TreePattern").CURRENT_LIKE()
    return bool(plan.containsPattern(pattern)) or not plan.deterministic()


def attempted(spark: SparkSession, value: Any) -> Column:
    """The value of a column, or NULL for a row for which its evaluation fails. Spark evaluates what an expression has twice ahead of it, where the
    failure would not be caught; within a lambda function it does not. `Any`: a `Column`."""
    java = _Java(spark)
    columns = java("org.apache.spark.sql.classic.ExpressionUtils")
    return Column(columns.column(java("org.apache.spark.sql.catalyst.expressions.TryEval")(columns.expression(value._jc))))


def batch_offsets(batch: DataFrame, batch_id: int) -> tuple[str | None, str] | None:
    """The start and end offsets of a micro-batch as JSON, from the offset log of the query that runs it. The start is None in the first batch.

    Returns None outside of a streaming query, and for a query over several streams."""
    query = _query_of(batch)
    if query is None:
        return None
    found: list[str | None] = []
    for number in (batch_id - 1, batch_id):
        entry = query.offsetLog().get(number)
        offsets = entry.get().offsets() if entry.isDefined() else None
        if offsets is None or offsets.size() != 1 or not offsets.apply(0).isDefined():
            found.append(None)
        else:
            found.append(str(offsets.apply(0).get().json()))
    start, end = found
    return None if end is None or (start is None and batch_id > 0) else (start, end)


def checkpoint_of(batch: DataFrame) -> str | None:
    """The checkpoint directory of the query that runs a micro-batch; None outside of a query."""
    query = _query_of(batch)
    return None if query is None else str(query.resolvedCheckpointRoot())


def _query_of(batch: Any) -> Any:
    """The query that runs a micro-batch, a `DataFrame`. `Any`: py4j's objects have no types."""
    query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        return None
    identifier = _Java(batch.sparkSession)("java.util.UUID").fromString(query_id)
    return batch._jdf.sparkSession().sharedState().activeStreamingQueries().get(identifier)


def hadoop_configuration(spark: Any) -> Any:
    """A new copy of a `SparkSession`'s Hadoop configuration. `Any`: py4j's objects have no types."""
    return spark._jsparkSession.sessionState().newHadoopConf()


def _located(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's path, and the file system that it is in."""
    place = _Java(spark)("org.apache.hadoop.fs.Path")(path)
    return place, place.getFileSystem(hadoop_configuration(spark))


def absolute_path(spark: SparkSession, path: str) -> str:
    """The path as its file system names it. What is absolute or names its file system is returned as it is."""
    place, files = _located(spark, path)
    return path if place.isAbsolute() else str(files.makeQualified(place).toString())


def read_text(spark: SparkSession, path: str) -> str | None:
    """A small file in any file system that Spark can read; None if it does not exist."""
    place, files = _located(spark, path)
    if not files.exists(place):
        return None
    stream = files.open(place)
    try:
        return str(_Java(spark)("org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Replaces a small file as a whole: a reader sees the old content or the new one."""
    java = _Java(spark)
    place = java("org.apache.hadoop.fs.Path")(path)
    manager = java("org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager").create(
        place.getParent(), hadoop_configuration(spark)
    )
    manager.mkdirs(place.getParent())
    stream = manager.createAtomic(place, True)
    try:
        stream.write(bytearray(text.encode()))
    except BaseException:
        stream.cancel()
        raise
    stream.close()
