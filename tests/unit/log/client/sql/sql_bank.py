"""A bank on an SQL database, and processes that race on it: `python sql_bank.py URL COUNT` applies a log of so many transactions when it starts."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from uuid import UUID

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, create_engine, insert, select, text, update

from waltz_log.client.sql import SqlApplication, SqlSettings
from waltz_log.client.transactions.transaction import Transaction
from waltz_log.core.metadata import ClusterParameters

__all__ = ["ACCOUNTS", "APPLIED", "CLUSTER", "FAST", "TABLES", "Bank", "applied", "connect_to", "mark", "race", "transactions"]

CLUSTER = ClusterParameters("test", UUID(int=7), 2)
TABLES = MetaData()
ACCOUNTS = Table("accounts", TABLES, Column("name", String(20), primary_key=True), Column("balance", Integer, nullable=False))
APPLIED = Table("applied", TABLES, Column("number", Integer, primary_key=True), Column("transaction_id", Integer), Column("process", Integer))
FAST = SqlSettings(retry_base_s=0.001, retry_cap_s=0.01, retry_s=5.0)

RACE = 240


class Bank(SqlApplication):
    """Balances; each transaction says `name+amount`. What is applied is noted without a key, so a second time would be seen."""

    def __init__(self, engine: Engine, sql: SqlSettings = FAST) -> None:
        super().__init__(engine, "bank", sql)

    def apply_transaction(self, connection: Connection, partition: int, transaction: Transaction) -> None:
        name, _, amount = transaction.data.decode().partition("+")
        changed = connection.execute(update(ACCOUNTS).where(ACCOUNTS.c.name == name).values(balance=ACCOUNTS.c.balance + int(amount)))
        if changed.rowcount == 0:
            connection.execute(insert(ACCOUNTS).values(name=name, balance=int(amount)))
        connection.execute(insert(APPLIED).values(transaction_id=transaction.transaction_id, process=os.getpid()))


def connect_to(url: str) -> Engine:
    return create_engine(url, connect_args={"timeout": 30} if url.startswith("sqlite") else {})


def transactions(first: int, count: int) -> list[Transaction]:
    return [Transaction(number, 0, 0, b"ada+%d" % number, 1, 1, number + 1) for number in range(first, first + count)]


def applied(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(select(APPLIED.c.transaction_id).order_by(APPLIED.c.number)).scalars())


def mark(engine: Engine) -> int:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT high_water_mark FROM waltz_high_water_marks WHERE application = 'bank' AND partition_id = 0"))
        return int(found.scalar_one())


def race(engine: Engine, url: str) -> None:
    """Two processes apply one log to one database at once; one is killed in the middle, twice, and another replaces it."""
    command = [sys.executable, __file__, url, str(RACE)]
    everybody = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        for process in everybody:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        racers, spare = everybody[:2], everybody[2:]
        for process in racers:
            _go(process)
        for step, another in enumerate(spare, 1):
            deadline = time.monotonic() + 60
            while len(applied(engine)) < step * RACE // 4:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            racers[0].send_signal(signal.SIGKILL)
            racers[0].wait(timeout=10)
            racers = [*racers[1:], another]
            _go(another)
        for process in racers:
            assert process.wait(timeout=60) == 0
    finally:
        for process in everybody:
            process.kill()
            process.communicate()
    assert applied(engine) == list(range(RACE))
    assert mark(engine) == RACE - 1
    with engine.connect() as connection:
        assert connection.execute(select(ACCOUNTS.c.balance)).scalar_one() == sum(range(RACE))
        assert len(set(connection.execute(select(APPLIED.c.process)).scalars())) >= 2, "nobody raced"


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


async def _racer(url: str, count: int) -> None:
    bank = Bank(connect_to(url), SqlSettings(batch_transactions=3))
    await bank.begin(CLUSTER)
    print("ready", flush=True)
    sys.stdin.readline()
    position = await bank.client_high_water_mark(0) + 1
    while position < count:
        size = min(random.randint(1, 9), count - position)
        await bank.apply(0, transactions(position, size))
        position += size


if __name__ == "__main__":
    asyncio.run(_racer(sys.argv[1], int(sys.argv[2])))
