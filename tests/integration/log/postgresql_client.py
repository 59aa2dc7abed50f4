"""Applications on a real PostgreSQL: `make postgresql`. Starts a server of its own, or uses the one that WALTZ_TEST_POSTGRESQL names (its tables
`accounts`, `applied` and `waltz_high_water_marks` are dropped). Not named test_*, so that `make test` needs no database; without one this fails.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, select, text
from sqlalchemy.exc import OperationalError

from tests.integration.free_ports import free_port
from tests.unit.log.client.sql.sql_bank import ACCOUNTS, CLUSTER, TABLES, Bank, applied, connect_to, mark, race, transactions
from waltz_log.client import Lock, TransactionContext
from waltz_log.client.sql import SqlContext, SqlSettings
from waltz_log.testing import InMemoryCluster

NAMED = os.environ.get("WALTZ_TEST_POSTGRESQL")

pytestmark = pytest.mark.timeout(240)


class Server:
    """A PostgreSQL under a directory of its own. It does not run as root: then its files are the user `postgres`'s."""

    def __init__(self) -> None:
        found = shutil.which("initdb")
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        if found is None and not installed:
            raise RuntimeError("no PostgreSQL here: install it (Debian: apt-get install postgresql), or name a server in WALTZ_TEST_POSTGRESQL")
        self._programs = Path(found).parent if found else installed[-1].parent
        self._user = "postgres" if os.getuid() == 0 else None
        self.directory = Path(tempfile.mkdtemp(prefix="waltz-postgresql-"))
        if self._user:
            shutil.chown(self.directory, self._user)
        self._port = free_port()
        self.url = f"postgresql+psycopg://waltz@127.0.0.1:{self._port}/postgres"
        initdb: list[str | Path] = [self._programs / "initdb", "-D", self.directory / "data", "-U", "waltz", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, user=self._user, cwd=self.directory, capture_output=True, timeout=120, check=True)
        self.start()

    def start(self) -> None:
        command: list[str | Path] = [self._programs / "postgres", "-D", self.directory / "data", "-p", str(self._port), "-k", self.directory]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        self._log = open(self.directory / "log", "ab")  # noqa: SIM115  # the server's for as long as it lives
        self._process = subprocess.Popen(command, user=self._user, cwd=self.directory, stdout=self._log, stderr=self._log)
        engine = create_engine(self.url)
        deadline = time.monotonic() + 60
        while True:
            try:
                engine.connect().close()
                break
            except OperationalError:
                assert time.monotonic() < deadline, (self.directory / "log").read_text()
                time.sleep(0.05)
        engine.dispose()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is PostgreSQL's fast shutdown, SIGQUIT a crash."""
        self._process.send_signal(how)
        self._process.wait(timeout=60)
        self._log.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server | None]:
    if NAMED:
        yield None
        return
    made = Server()
    yield made
    made.stop()
    shutil.rmtree(made.directory)


@pytest.fixture
def url(server: Server | None) -> str:
    return NAMED or ("" if server is None else server.url)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = connect_to(url)
    TABLES.drop_all(made)
    with made.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS waltz_high_water_marks"))
    TABLES.create_all(made)
    yield made
    made.dispose()


def test_processes_that_race_and_are_killed_apply_each_transaction_once_on_postgresql(engine: Engine, url: str) -> None:
    race(engine, url)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_at_every_isolation_level_each_transaction_is_applied_once(engine: Engine, url: str, isolation: str) -> None:
    engines = [create_engine(url, isolation_level=isolation) for _ in range(3)]

    async def main() -> None:
        banks = [Bank(each, SqlSettings(batch_transactions=4, retry_base_s=0.001, retry_cap_s=0.02)) for each in engines]
        await asyncio.gather(*(bank.begin(CLUSTER) for bank in banks))  # the table of the marks is made once
        assert await asyncio.gather(*(bank.client_high_water_mark(0) for bank in banks)) == [-1, -1, -1]
        await asyncio.gather(*(bank.apply(0, transactions(0, 100)) for bank in banks))

    asyncio.run(main())
    for each in engines:
        each.dispose()
    assert applied(engine) == list(range(100))
    assert mark(engine) == 99


class Deposit(SqlContext):
    def partition(self, count: int) -> int:
        return 0

    def execute_in(self, tx: TransactionContext, connection: Connection) -> None:
        balance = connection.execute(select(ACCOUNTS.c.balance).where(ACCOUNTS.c.name == "ada")).scalar_one_or_none() or 0
        if balance < 15:
            tx.append(b"ada+1", write_locks=[Lock("account", "ada")])


def test_contexts_of_two_clients_on_one_postgresql_never_exceed_what_they_check(engine: Engine) -> None:
    async def main() -> None:
        async with InMemoryCluster() as cluster:
            clients = [await cluster.client() for _ in range(2)]
            for client in clients:
                await client.mount(Bank(engine))
            tasks = [await clients[number % 2].submit(Deposit(), attempts=1000) for number in range(30)]
            assert sum(receipt is not None for receipt in await asyncio.gather(*tasks)) == 15

    asyncio.run(main())
    assert applied(engine) == list(range(15))


if not NAMED:  # a server that another user runs is not ours to crash

    def test_a_server_that_crashes_and_comes_back_costs_a_pause(engine: Engine, server: Server | None) -> None:
        assert server is not None

        async def main() -> None:
            bank = Bank(engine, SqlSettings(batch_transactions=2, retry_s=60.0))
            await bank.begin(CLUSTER)
            await bank.client_high_water_mark(0)
            await bank.apply(0, transactions(0, 10))
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            applying = asyncio.ensure_future(bank.apply(0, transactions(10, 10)))
            await asyncio.sleep(0.1)
            assert not applying.done()
            await asyncio.to_thread(server.start)
            await applying

        asyncio.run(main())
        assert applied(engine) == list(range(20))
