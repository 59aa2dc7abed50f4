"""A service whose state is an SQL database, to be killed: `python -m tests.integration.log.bank_service CLUSTER URL LIMIT`.

Pays into accounts until each has LIMIT, a coin at a time, together with others like it on the same database.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future

from sqlalchemy import Connection, select

from tests.unit.log.client.sql.sql_bank import ACCOUNTS, Bank, connect_to
from waltz_log.client import Lock, Receipt, SyncWaltzClient, Transaction, TransactionContext
from waltz_log.client.sql import SqlContext

NAMES = (b"ada", b"bob", b"cyd")
TOGETHER = 12


class Books(Bank):
    """The log has other transactions too."""

    def apply_transaction(self, connection: Connection, partition: int, transaction: Transaction) -> None:
        if transaction.data.partition(b"+")[0] in NAMES:
            super().apply_transaction(connection, partition, transaction)


class Pay(SqlContext):
    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit

    def partition(self, count: int) -> int:
        return 1

    def execute_in(self, tx: TransactionContext, connection: Connection) -> None:
        balance = connection.execute(select(ACCOUNTS.c.balance).where(ACCOUNTS.c.name == self.name)).scalar_one_or_none() or 0
        if balance < self.limit:
            tx.append(f"{self.name}+1".encode(), write_locks=[Lock("account", self.name)])


def pay(cluster: str, url: str, limit: int) -> None:
    with SyncWaltzClient(cluster) as client:
        client.mount(Books(connect_to(url)), [1])
        left = [name.decode() for name in NAMES]
        while left:
            paying: list[tuple[str, Future[Receipt | None]]] = []
            for number in range(TOGETHER):
                name = left[number % len(left)]
                paying.append((name, client.submit(Pay(name, limit), attempts=1000, timeout_s=60)))
            full = {name for name, future in paying if future.result(timeout=60) is None}
            left = [name for name in left if name not in full]


if __name__ == "__main__":
    pay(sys.argv[1], sys.argv[2], int(sys.argv[3]))
