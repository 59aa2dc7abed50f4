"""The client high-water marks of one application, in its own database: for each partition, the last transaction that the database holds.

A mark moves only by compare-and-set, in the database transaction that also holds the application's change. So if several processes apply one
transaction, one succeeds, and its change and the mark are committed together or not at all. Portable SQL; blocking; uses the caller's connection.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Engine, Integer, MetaData, String, Table, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from waltz_log.errors import ClusterKeyMismatch

__all__ = ["Marks"]


class Marks:
    """`application`: several may share one database, each with its own marks."""

    def __init__(self, application: str, table: str) -> None:
        self._application = application
        self._table = Table(
            table,
            MetaData(),
            Column("application", String(64), primary_key=True),
            Column("partition_id", Integer, primary_key=True, autoincrement=False),
            Column("cluster_key", String(36), nullable=False),
            Column("high_water_mark", BigInteger, nullable=False),
        )

    def create(self, engine: Engine) -> None:
        """Creates the table unless it exists."""
        try:
            self._table.metadata.create_all(engine)
        except DBAPIError:
            # Another process may have created it between the check and the creation: databases report that in different ways.
            if not inspect(engine).has_table(self._table.name):
                raise

    def open(self, engine: Engine, partition: int, cluster_key: UUID) -> int:
        """The mark of a partition, -1 where it had none. Raises `ClusterKeyMismatch` if it counts the transactions of another cluster."""
        while True:
            with engine.connect() as connection:
                row = connection.execute(select(self._table.c.high_water_mark, self._table.c.cluster_key).where(*self._at(partition))).one_or_none()
            if row is not None:
                if row.cluster_key != str(cluster_key):
                    raise ClusterKeyMismatch(where=f"table {self._table.name}")
                return int(row.high_water_mark)
            try:
                with engine.begin() as connection:
                    new = {"application": self._application, "partition_id": partition, "cluster_key": str(cluster_key), "high_water_mark": -1}
                    connection.execute(insert(self._table).values(new))
            except IntegrityError:
                continue  # another process was faster

    def read(self, connection: Connection, partition: int) -> int:
        return int(connection.execute(select(self._table.c.high_water_mark).where(*self._at(partition))).scalar_one())

    def advance(self, connection: Connection, partition: int, known: int, to: int) -> bool:
        """Moves the mark and keeps others from moving it until the database transaction ends; False if it is not at `known`."""
        where = (*self._at(partition), self._table.c.high_water_mark == known)
        return connection.execute(update(self._table).where(*where).values(high_water_mark=to)).rowcount == 1

    def _at(self, partition: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return self._table.c.application == self._application, self._table.c.partition_id == partition
