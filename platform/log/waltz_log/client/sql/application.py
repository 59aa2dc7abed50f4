"""An application whose state is an SQL database, shared by any number of processes (Application Programming Model).

Each process reads the whole log and offers each transaction to the database. The mark decides which process applies it, so every transaction is
applied exactly once, even if a process dies in between. Each database transaction moves the mark first: the other processes wait for that row, and
then find that nothing is left to do. Contexts read the mark before the state, so it never claims more than they saw.

The database is called in threads of the event loop's executor. A cancelled call returns only after its database transaction has ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from waltz_log.client.base import fork
from waltz_log.client.base.retry import Backoff
from waltz_log.client.sql.database_marks import Marks
from waltz_log.client.sql.settings import SqlSettings
from waltz_log.client.transactions.context import Application, Context
from waltz_log.client.transactions.transaction import Transaction
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.core.metadata import ClusterParameters
from waltz_log.errors import InvalidRequest
from waltz_log.loggers import get_logger

__all__ = ["SqlApplication", "SqlContext"]

log = get_logger(__name__)

T = TypeVar("T")


class SqlContext(Context):
    """A context that reads the application's database. Its other hooks run in the event loop, as those of `Context`."""

    def execute(self, tx: TransactionContext) -> None:
        """Raises `InvalidRequest`: a client without an `SqlApplication` cannot execute it."""
        raise InvalidRequest(reason="a context on a database is submitted to a client at which an SqlApplication is mounted")

    def execute_in(self, tx: TransactionContext, connection: Connection) -> None:
        """As `Context.execute`, in a thread, with a connection to the database. Changes that it makes are rolled back: `apply_transaction` changes
        the database, when the transaction comes from the log."""
        raise NotImplementedError


class _MovedBack(Exception):
    """The database's mark is below what this process has fed it: it was restored from a copy."""


class SqlApplication(Application):
    """An application whose state is in an SQL database. Subclass it with `apply_transaction`. All processes of the application use the same `name`
    and the same database; each transaction is applied exactly once."""

    def __init__(self, engine: Engine, name: str = "application", settings: SqlSettings | None = None, *, rng: random.Random | None = None) -> None:
        self.engine = engine
        self._settings = settings or SqlSettings()
        self._marks = Marks(name, self._settings.table)
        self._rng = rng or random.Random()
        self._cluster_key: UUID | None = None
        self._fork = fork.count()

    def apply_transaction(self, connection: Connection, partition: int, transaction: Transaction) -> None:
        """Changes the database for one transaction of the log. It runs in a thread, inside a database transaction that it must not end. An error
        rolls back the whole batch."""
        raise NotImplementedError

    # ---- what the client calls -------------------------------------------------------------------------------------------------------------------

    async def begin(self, cluster: ClusterParameters) -> None:
        """Creates the table of marks if it is missing."""
        if self._fork != fork.count():
            self.engine.dispose(close=False)  # the pool's connections belong to the parent
            self._fork = fork.count()
        self._cluster_key = cluster.key
        await self._database(lambda: self._marks.create(self.engine))

    async def client_high_water_mark(self, partition: int) -> int:
        """The mark of the partition in the database. Raises `ClusterKeyMismatch` if the mark counts the transactions of another cluster."""
        key = self._cluster_key
        if key is None:
            raise InvalidRequest(reason="the application is not mounted")
        return await self._database(lambda: self._marks.open(self.engine, partition, key))

    async def apply(self, partition: int, transactions: list[Transaction]) -> None:
        """Applies transactions in database transactions of at most `batch_transactions`, each together with its mark. Skips those that another
        process has applied."""
        most = self._settings.batch_transactions
        for start in range(0, len(transactions), most):
            batch = transactions[start : start + most]
            while not await self._database(partial(self._apply, partition, batch)):
                log.debug("part applied by another process", partition=partition, first=batch[0].transaction_id)

    def on_error(self, partition: int, error: BaseException) -> bool:
        """True if the mark in the database fell, because the database was restored from a copy: the feed starts again from that mark."""
        return isinstance(error, _MovedBack)

    async def execute(self, context: Context, partition: int, applied: int, attempt: int) -> TransactionContext:
        """Executes an `SqlContext`. Its mark is read from the database before the state, so that it never claims more than the context reads."""
        if not isinstance(context, SqlContext):
            return await super().execute(context, partition, applied, attempt)
        return await self._database(lambda: self._execute(context, partition, attempt))

    # ---- in a thread -----------------------------------------------------------------------------------------------------------------------------

    def _apply(self, partition: int, batch: list[Transaction]) -> bool:
        """Applies the part of the batch that the database does not have yet, in one database transaction. False: another process moved the mark in
        between, try again."""
        known, last = batch[0].transaction_id - 1, batch[-1].transaction_id
        with self.engine.begin() as connection:
            if not self._marks.advance(connection, partition, known, last):
                mark = self._marks.read(connection, partition)
                if mark >= last:
                    return True
                if mark < known:
                    raise _MovedBack(f"the mark in the database moved back: partition={partition} mark={mark} fed={known}")
                if not self._marks.advance(connection, partition, mark, last):
                    return False
                batch = batch[mark - known :]
            with _kept_open(connection):
                for transaction in batch:
                    self.apply_transaction(connection, partition, transaction)
        return True

    def _execute(self, context: SqlContext, partition: int, attempt: int) -> TransactionContext:
        with self.engine.connect() as connection:
            tx = TransactionContext(partition, self._marks.read(connection, partition), attempt)
            with _kept_open(connection):
                context.execute_in(tx, connection)
            connection.rollback()
        return tx

    # ---- the way there ---------------------------------------------------------------------------------------------------------------------------

    async def _database(self, work: Callable[[], T]) -> T:
        """The work in a thread, again while the database cannot be reached or would not have it just now."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng)
        deadline = loop.time() + self._settings.retry_s
        while True:
            try:
                return await _in_thread(work)
            except DBAPIError as error:
                pause_s = backoff.next_s()
                transient = error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
                if not transient or loop.time() + pause_s >= deadline:
                    raise
                log.warning("database call failed and is retried", error=str(error.orig), pause_s=round(pause_s, 3))
                await asyncio.sleep(pause_s)


async def _in_thread(work: Callable[[], T]) -> T:
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # marks the error as retrieved: the caller has cancelled
        raise


@contextmanager
def _kept_open(connection: Connection) -> Iterator[None]:
    """Refuses a commit or rollback by the application's function: it would record the mark without the change, or the change without the mark."""
    tried = False

    def refuse(_: Connection) -> None:
        nonlocal tried
        tried = True
        raise InvalidRequest(reason=NOT_ITS_OWN)

    event.listen(connection, "commit", refuse)
    event.listen(connection, "rollback", refuse)
    try:
        yield
        failed: Exception | None = None
    except Exception as error:
        failed = error
    finally:
        event.remove(connection, "commit", refuse)
        event.remove(connection, "rollback", refuse)
    if tried:
        connection.invalidate()  # SQLAlchemy believes that it ended, the database does not: closing the connection rolls back
        raise InvalidRequest(reason=NOT_ITS_OWN) from failed
    if failed is not None:
        raise failed


NOT_ITS_OWN = "the database transaction is not the application's to end"
