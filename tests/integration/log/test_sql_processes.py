"""Processes that apply the same log to one SQL database: they race, and are killed."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import text

from tests.unit.log.client.sql.sql_bank import TABLES, connect_to, race


def test_processes_that_race_and_are_killed_apply_each_transaction_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'race.db'}"
    engine = connect_to(url)
    with engine.connect() as connection:
        connection.execute(text("PRAGMA journal_mode = WAL"))
    TABLES.create_all(engine)
    race(engine, url)
    engine.dispose()
