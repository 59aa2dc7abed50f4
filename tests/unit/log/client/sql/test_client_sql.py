"""Applications on SQL databases: exactly once, whichever process applies and whichever dies, the mark with the change, contexts on the database's
state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, create_engine, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from tests.unit.log.client.sql.sql_bank import ACCOUNTS, CLUSTER, FAST, TABLES, Bank, applied, connect_to, mark, transactions
from waltz_log.client import Context, Lock, Receipt, Transaction, TransactionContext, WaltzClient
from waltz_log.client.sql import SqlContext, SqlSettings
from waltz_log.core.metadata import ClusterParameters
from waltz_log.errors import ClusterKeyMismatch, InvalidRequest

Connect = Callable[..., Awaitable[WaltzClient]]


class Deposit(SqlContext):
    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.threads: set[str] = set()

    def partition(self, count: int) -> int:
        return 0

    def execute_in(self, tx: TransactionContext, connection: Connection) -> None:
        self.threads.add(threading.current_thread().name)
        balance = connection.execute(select(ACCOUNTS.c.balance).where(ACCOUNTS.c.name == self.name)).scalar_one_or_none() or 0
        if balance < self.limit:
            tx.append(f"{self.name}+1".encode(), write_locks=[Lock("account", self.name)])


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = connect_to(f"sqlite:///{tmp_path / 'bank.db'}")
    TABLES.create_all(made)
    yield made
    made.dispose()


async def opened(engine: Engine, sql: SqlSettings = FAST) -> Bank:
    bank = Bank(engine, sql)
    await bank.begin(CLUSTER)
    assert await bank.client_high_water_mark(0) >= -1
    return bank


# ---- the mark ----------------------------------------------------------------------------------------------------------------------------------


@given(
    offers=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), max_size=12),
    batch=st.integers(1, 5),
)
@settings(max_examples=15, deadline=None)
def test_whatever_is_offered_again_each_transaction_is_applied_once_and_in_order(offers: list[tuple[int, int]], batch: int) -> None:
    async def scenario() -> None:
        engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool)
        TABLES.create_all(engine)
        bank = await opened(engine, SqlSettings(batch_transactions=batch))
        reached = -1
        for back, count in offers:
            first = max(0, reached + 1 - back)
            await bank.apply(0, transactions(first, count))
            reached = max(reached, first + count - 1)
            assert applied(engine) == list(range(reached + 1))
            assert mark(engine) == reached
        engine.dispose()

    asyncio.run(scenario())


async def test_an_error_rolls_back_the_change_and_the_mark_together(engine: Engine) -> None:
    class Failing(Bank):
        def apply_transaction(self, connection: Connection, partition: int, transaction: Transaction) -> None:
            super().apply_transaction(connection, partition, transaction)
            if transaction.transaction_id == 3:
                raise ZeroDivisionError

    bank = Failing(engine)
    await bank.begin(CLUSTER)
    await bank.client_high_water_mark(0)
    with pytest.raises(ZeroDivisionError):
        await bank.apply(0, transactions(0, 5))
    assert (applied(engine), mark(engine)) == ([], -1)
    await (await opened(engine)).apply(0, transactions(0, 5))
    assert (applied(engine), mark(engine)) == ([0, 1, 2, 3, 4], 4)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("caught", [False, True])
async def test_the_application_cannot_end_the_database_transaction(engine: Engine, end: str, caught: bool) -> None:
    class Ending(Bank):
        def apply_transaction(self, connection: Connection, partition: int, transaction: Transaction) -> None:
            super().apply_transaction(connection, partition, transaction)
            try:
                getattr(connection, end)()
            except InvalidRequest:
                if not caught:
                    raise

    bank = Ending(engine)
    await bank.begin(CLUSTER)
    await bank.client_high_water_mark(0)
    with pytest.raises(InvalidRequest, match="not the application's to end"):
        await bank.apply(0, transactions(0, 2))
    assert (applied(engine), mark(engine)) == ([], -1)


async def test_savepoints_are_the_applications_own(engine: Engine) -> None:
    class Careful(Bank):
        def apply_transaction(self, connection: Connection, partition: int, transaction: Transaction) -> None:
            with connection.begin_nested() as kept:
                super().apply_transaction(connection, partition, transaction)
                if transaction.transaction_id % 2:
                    kept.rollback()

    bank = Careful(engine)
    await bank.begin(CLUSTER)
    await bank.client_high_water_mark(0)
    await bank.apply(0, transactions(0, 4))
    assert (applied(engine), mark(engine)) == ([0, 2], 3)


async def test_the_database_of_another_cluster_is_refused(engine: Engine) -> None:
    await opened(engine)
    other = Bank(engine)
    await other.begin(ClusterParameters("test", UUID(int=8), 2))
    with pytest.raises(ClusterKeyMismatch):
        await other.client_high_water_mark(0)


async def test_a_locked_database_is_retried_a_limited_number_of_times(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'locked.db'}", connect_args={"timeout": 0})
    TABLES.create_all(engine)
    bank = await opened(engine)
    holder = engine.connect()
    holder.execute(text("BEGIN IMMEDIATE"))
    applying = asyncio.ensure_future(bank.apply(0, transactions(0, 3)))
    await asyncio.sleep(0.05)
    assert not applying.done()
    holder.rollback()
    await applying
    assert applied(engine) == [0, 1, 2]
    holder.execute(text("BEGIN IMMEDIATE"))
    hasty = await opened(engine, SqlSettings(retry_s=0.05, retry_base_s=0.001, retry_cap_s=0.01))
    with pytest.raises(OperationalError, match="locked"):
        await hasty.apply(0, transactions(3, 1))
    holder.rollback()
    holder.close()
    engine.dispose()


async def test_cancelled_work_is_awaited(engine: Engine) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Bank):
        def apply_transaction(self, connection: Connection, partition: int, transaction: Transaction) -> None:
            entered.set()
            leave.wait(10)
            super().apply_transaction(connection, partition, transaction)

    bank = Slow(engine)
    await bank.begin(CLUSTER)
    await bank.client_high_water_mark(0)
    applying = asyncio.ensure_future(bank.apply(0, transactions(0, 1)))
    await asyncio.to_thread(entered.wait, 10)
    applying.cancel()
    await asyncio.sleep(0.02)
    assert not applying.done()
    leave.set()
    await asyncio.wait([applying])
    assert applying.cancelled()
    assert (applied(engine), mark(engine)) == ([0], 0)


# ---- at a log ----------------------------------------------------------------------------------------------------------------------------------


async def test_contexts_on_a_database_never_exceed_what_they_check(connect: Connect, engine: Engine) -> None:
    clients = [await connect() for _ in range(2)]
    banks = [Bank(engine) for _ in clients]
    for client, bank in zip(clients, banks, strict=True):
        await client.mount(bank)
    deposits = [Deposit("ada", 20) for _ in range(40)]
    tasks = [await clients[number % 2].submit(deposit, attempts=1000) for number, deposit in enumerate(deposits)]
    receipts = [receipt for receipt in await asyncio.gather(*tasks) if receipt is not None]
    assert len(receipts) == 20
    with engine.connect() as connection:
        assert connection.execute(select(ACCOUNTS.c.balance)).scalar_one() == 20
    assert applied(engine) == list(range(20))
    assert threading.current_thread().name not in {name for deposit in deposits for name in deposit.threads}


async def test_a_database_that_was_restored_is_fed_again_from_its_mark(connect: Connect, engine: Engine) -> None:
    client = await connect()
    bank = Bank(engine)
    await client.mount(bank, [0])
    for number in range(5):
        await client.append(0, b"ada+%d" % number)
    await client.applied(0).wait(4)
    with engine.begin() as connection:  # a copy of when 0 and 1 were applied
        connection.execute(text("UPDATE waltz_high_water_marks SET high_water_mark = 1"))
        connection.execute(text("DELETE FROM applied WHERE transaction_id > 1"))
    await client.append(0, b"ada+5")
    async with asyncio.timeout(10):
        while applied(engine) != [0, 1, 2, 3, 4, 5]:
            await asyncio.sleep(0.005)


async def test_a_context_of_another_kind_is_refused_with_the_right_method(connect: Connect, engine: Engine) -> None:
    client = await connect()
    await client.mount(Bank(engine))

    class Plain(Context):
        def partition(self, count: int) -> int:
            return 0

        def execute(self, tx: TransactionContext) -> None:
            tx.append(b"ada+1")

    assert isinstance(await (await client.submit(Plain())), Receipt)
    with pytest.raises(InvalidRequest, match="SqlApplication"):
        Deposit("ada", 1).execute(TransactionContext(0, -1, 1))


async def test_writes_of_a_context_during_its_execution_are_rolled_back(connect: Connect, engine: Engine) -> None:
    client = await connect()
    await client.mount(Bank(engine))

    class Writing(Deposit):
        def execute_in(self, tx: TransactionContext, connection: Connection) -> None:
            connection.execute(insert(ACCOUNTS).values(name="bob", balance=1))
            super().execute_in(tx, connection)

    assert await (await client.submit(Writing("ada", 5))) is not None
    with engine.connect() as connection:
        assert list(connection.execute(select(ACCOUNTS.c.name)).scalars()) == ["ada"]
