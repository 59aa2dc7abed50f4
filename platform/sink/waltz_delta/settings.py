"""The settings of the way from the log into Delta tables: decoding, routing, projection, target, dead letters. Values only.

A `LandingSettings` is everything that `waltz_delta.landing.landing.Landing` needs besides the cluster key. Each output fills one table: transactions
with the headers of its route are decoded, filtered, projected and written. The further settings of a pipeline (source, trigger, names) are in
`pipelines.pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from uuid import UUID

from pydantic import Field, model_validator

from pyspark_waltz.decode.settings import DecodeSettings, TimestampUnit
from waltz_log.settings import Settings

__all__ = [
    "DeadLetterSettings",
    "DecodeSettings",
    "DeleteSettings",
    "HistorySettings",
    "LandingSettings",
    "LayoutSettings",
    "OutputSettings",
    "ProjectionSettings",
    "RouteSettings",
    "TargetSettings",
    "TimestampUnit",
]


class RouteSettings(Settings):
    """Which transactions this output receives: those whose header is one of these."""

    headers: tuple[int, ...] = Field(min_length=1, description="Headers that the application set. Several outputs can have the same.")


class ProjectionSettings(Settings):
    """From decoded columns to the table's, in SQL."""

    where: str | None = Field(default=None, description="SQL condition over the decoded columns. Rows that it drops count as landed.")
    select: str | None = Field(
        default=None, description="SQL select list; without it, all columns. `partition` and `transaction_id` are always kept."
    )


class DeleteSettings(Settings):
    """Which transactions delete the row of their key, and what remains of it. They need only the key's columns, not the other required fields."""

    headers: tuple[int, ...] = Field(default=(), description="A transaction with one of these headers deletes. Give this or `where`.")
    where: str | None = Field(
        default=None, description="SQL condition over the decoded columns that makes a transaction a delete, such as `op = 'D'`."
    )
    kind: Literal["hard", "soft"] = Field(
        default="hard",
        description="`hard` removes the row. `soft` keeps it with its last values and marks it as deleted.",
    )
    deleted: str = Field(default="deleted", min_length=1, description="Soft: name of the BOOLEAN column that marks a row as deleted.")
    deleted_at: str = Field(default="deleted_at", min_length=1, description="Soft: name of the TIMESTAMP column, the log's time of the delete.")
    tombstones: str | None = Field(
        default=None,
        description="Hard: path of the table that stores deleted keys, if an older row can arrive after its delete (with a named sequence, "
        "or with dead letters). Default: the table's path with the suffix `_tombstones`.",
    )

    @model_validator(mode="after")
    def _one_rule(self) -> DeleteSettings:
        if bool(self.headers) == (self.where is not None):
            raise ValueError("deletes are identified by headers or by where: give one of them")
        if self.kind == "soft" and self.tombstones is not None:
            raise ValueError("tombstones are for hard deletes; a soft delete keeps the row itself")
        if self.kind == "soft" and self.deleted.lower() == self.deleted_at.lower():
            raise ValueError("deleted and deleted_at are two columns")
        return self


class LayoutSettings(Settings):
    """How the files of a new table are organized. An existing table keeps its own layout."""

    partition_by: tuple[str, ...] = Field(default=(), description="Columns with few values each (a day, a region); every value has separate files.")
    cluster_by: tuple[str, ...] = Field(
        default=(), max_length=4, description="Columns that queries and merges filter by, with any number of values. Prefer it if you are unsure."
    )

    @model_validator(mode="after")
    def _one_way(self) -> LayoutSettings:
        if self.partition_by and self.cluster_by:
            raise ValueError("a table is partitioned or clustered, not both")
        return self


class HistorySettings(Settings):
    """The columns that a slowly changing dimension of type 2 has besides the row's own."""

    valid_from: str = Field(
        default="valid_from", min_length=1, description="Sequence (by default the transaction id) from which the version is valid."
    )
    valid_to: str = Field(
        default="valid_to", min_length=1, description="Sequence of the row that replaced or deleted it, exclusive; null while it is current."
    )
    is_current: str = Field(default="is_current", min_length=1, description="Whether the version is current.")

    @model_validator(mode="after")
    def _three_columns(self) -> HistorySettings:
        if len({self.valid_from.lower(), self.valid_to.lower(), self.is_current.lower()}) < 3:
            raise ValueError("valid_from, valid_to and is_current are three columns")
        return self


class TargetSettings(Settings):
    """One Delta table and how rows are written to it."""

    table: str = Field(min_length=1, description="Path of the Delta table. It is created if it does not exist.")
    mode: Literal["append", "upsert", "history"] = Field(
        default="append",
        description="`append` keeps every transaction; `upsert` keeps the newest row of each key; `history` keeps every version of a key "
        "with the range in which it was valid (a slowly changing dimension of type 2).",
    )
    keys: tuple[str, ...] = Field(default=(), description="Upsert and history: columns that identify a row; null is a key too.")
    sequence: str = Field(
        default="transaction_id",
        min_length=1,
        description="Upsert and history: the column that decides which of two rows of a key is newer. With the default, a key must stay in "
        "one log partition. If it cannot, name a column of the data.",
    )
    deletes: DeleteSettings | None = Field(default=None, description="Upsert and history: which transactions delete. Without it, none does.")
    history: HistorySettings = Field(default=HistorySettings(), description="History: names of the columns it adds.")
    engine: Literal["auto", "arrow", "spark"] = Field(
        default="auto",
        description="Which engine writes the table. `arrow` writes files with pyarrow and commits them without the JVM: less time for each batch, "
        "and S3 without DynamoDB. `spark` writes all that Delta can, with all executors. `auto` is arrow where the table allows it, and "
        "spark otherwise; choose arrow if you want an error instead of the other engine.",
    )
    storage: dict[str, str] = Field(
        default={},
        description="Engine arrow: options of the object store, such as AWS_REGION, AZURE_STORAGE_ENDPOINT or GOOGLE_BASE_URL. What is not here "
        "comes from the environment of the driver and of the executors. Set credentials there, not here.",
    )
    evolution: Literal["off", "add_columns", "fail"] = Field(
        default="fail",
        description="If the rows have columns that the table does not have: `fail` refuses to start, `add_columns` adds them, `off` drops "
        "them. A column of another type is always refused.",
    )
    layout: LayoutSettings = Field(default=LayoutSettings(), description="Partitioning or clustering of a new table.")
    properties: dict[str, str] = Field(default={}, description="Delta table properties of a new table, such as `delta.enableChangeDataFeed`.")

    @model_validator(mode="after")
    def _keyed(self) -> TargetSettings:
        _expect_followed(self.engine, self.storage)
        if self.mode == "append":
            for name in ("keys", "deletes"):
                if getattr(self, name):
                    raise ValueError(f"{name} are for the modes upsert and history; mode is append")
            if self.sequence != "transaction_id":
                raise ValueError("sequence is for the modes upsert and history; mode is append")
        elif not self.keys:
            raise ValueError(f"mode {self.mode} needs keys")
        if self.mode != "history" and self.history != HistorySettings():
            raise ValueError(f"history names columns of the mode history; mode is {self.mode}")
        if self.mode == "history" and self.deletes is not None and self.deletes.kind == "soft":
            raise ValueError("a history keeps what was deleted anyway: a delete ends the version that held")
        return self


def _expect_followed(engine: str, storage: Mapping[str, str]) -> None:
    if engine == "spark" and storage:
        raise ValueError("storage has options of the engine arrow, and engine is spark: it reaches stores by Spark's configuration")


class OutputSettings(Settings):
    """One table and the transactions that it receives."""

    target: TargetSettings = Field(description="The table.")
    decode: DecodeSettings = Field(default=DecodeSettings(), description="How data becomes columns.")
    route: RouteSettings | None = Field(default=None, description="Which transactions; without it, all.")
    projection: ProjectionSettings = Field(default=ProjectionSettings(), description="Filter and select list.")


class DeadLetterSettings(Settings):
    """Where transactions go that do not decode: with their position in the log, the reason, and the unchanged data."""

    table: str = Field(min_length=1, description="Path of the Delta table of dead letters. Several landings may share one.")
    engine: Literal["auto", "arrow", "spark"] = Field(default="auto", description="Which engine writes the table, as in a target.")
    storage: dict[str, str] = Field(default={}, description="Engine arrow: options of the object store, as in a target.")

    @model_validator(mode="after")
    def _followed(self) -> DeadLetterSettings:
        _expect_followed(self.engine, self.storage)
        return self


class LandingSettings(Settings):
    """Everything that one query over the log lands: one or several tables, and the dead letters of all of them."""

    outputs: tuple[OutputSettings, ...] = Field(min_length=1, description="The outputs; each table once.")
    dead_letters: DeadLetterSettings | None = Field(default=None, description="Without it, a transaction that cannot be decoded fails the query.")
    former_clusters: tuple[UUID, ...] = Field(
        default=(),
        description="Keys of clusters that filled the tables before, and that the cluster of the source replaces. The new cluster "
        "inherits each table of theirs at the start, once: all of its rows then count as newer. Without it, such a table is refused.",
    )
    unrouted: Literal["skip", "dead_letter", "fail"] = Field(
        default="skip", description="What happens to a transaction whose header no route names, if every output has a route."
    )

    @model_validator(mode="after")
    def _consistent(self) -> LandingSettings:
        tables = [output.target.table.rstrip("/") for output in self.outputs]
        if self.dead_letters is not None:
            tables.append(self.dead_letters.table.rstrip("/"))
        for output in self.outputs:
            if output.decode.undecodable == "dead_letter" and self.dead_letters is None:
                raise ValueError("undecodable is dead_letter, and no dead_letters are declared")
        if self.unrouted == "dead_letter" and self.dead_letters is None:
            raise ValueError("unrouted is dead_letter, and no dead_letters are declared")
        for table in tables:
            if tables.count(table) > 1:
                raise ValueError(f"two outputs of one table would drop each other's rows: {table}")
        return self
