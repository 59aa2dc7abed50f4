"""Every check is fed the one error it exists for, and must see it."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from demo.checks import Result, check_aircraft, check_flight_legs, fold
from demo.flights import AIRPORTS, Flight
from demo.legs import Fleet, Totals, partition_of

PARTITIONS = 4
Row = dict[str, Any]


def some_flights() -> list[Flight]:
    chance = random.Random(7)
    tails = ["N1", "N2", "N3", None]
    return [
        Flight(airport, "IAH", "UA", number, chance.choice(tails), "2013-01-01", f"2013-01-01T{number // 60:02}:{number % 60:02}:00Z", 0, 0,
               chance.choice([None, 60, 90]), 100 + number)
        for number in range(60)
        for airport in AIRPORTS
    ]  # fmt: skip


def pipeline(flights: list[Flight], seed: int) -> tuple[list[Row], list[Row], dict[int, int]]:
    """The tables that a correct pipeline makes when the airports alternate at random."""
    chance = random.Random(seed)
    queues = {airport: [flight for flight in flights if flight.origin == airport] for airport in AIRPORTS}
    fleet: dict[str, Totals] = {}
    marks = dict.fromkeys(range(PARTITIONS), -1)
    legs: list[Row] = []
    while any(queues.values()):
        flight = queues[chance.choice([airport for airport in AIRPORTS if queues[airport]])].pop(0)
        partition = partition_of(flight, PARTITIONS)
        marks[partition] += 1
        totals = None if flight.tail is None else fleet.get(flight.tail, Totals()).plus(flight)
        if flight.tail is not None and totals is not None:
            fleet[flight.tail] = totals
        legs.append(
            {
                "partition": partition,
                "transaction_id": marks[partition],
                "tail": flight.tail,
                "leg": totals and totals.legs,
                "total_distance": totals and totals.distance,
                "total_minutes": totals and totals.minutes,
                "origin": flight.origin,
                "carrier": flight.carrier,
                "flight": flight.flight,
                "scheduled": datetime.strptime(flight.scheduled, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC),
                "distance": flight.distance,
            }
        )
    chance.shuffle(legs)
    aircraft = [{"tail": tail, "legs": t.legs, "distance": t.distance, "minutes": t.minutes} for tail, t in fleet.items()]
    return legs, aircraft, marks


def wrong_claims(results: list[Result]) -> set[str]:
    return {result.claim for result in results if not result.ok}


def check_legs(change: Callable[[list[Row]], object]) -> set[str]:
    flights = some_flights()
    legs, _, marks = pipeline(flights, seed=1)
    legs.sort(key=lambda row: (row["tail"] or "", row["leg"] or 0))
    change(legs)
    return wrong_claims(check_flight_legs(pa.Table.from_pylist(legs), flights, marks))


@pytest.mark.parametrize("seed", range(5))
def test_every_interleaving_of_a_correct_pipeline_passes(seed: int) -> None:
    flights = some_flights()
    legs, aircraft, marks = pipeline(flights, seed)
    assert not wrong_claims(check_flight_legs(pa.Table.from_pylist(legs), flights, marks))
    assert not wrong_claims(check_aircraft(pa.Table.from_pylist(aircraft), flights))


def test_a_missing_row_is_seen() -> None:
    wrong = check_legs(lambda legs: legs.pop(100))
    assert {"rows", "miles", "every flight of the CSV exactly once", "each (partition, transaction_id) of the log exactly once"} <= wrong
    assert "legs of each aircraft are 1, 2, 3, … up to its flights in the CSV" in wrong


def test_a_row_written_twice_is_seen() -> None:
    wrong = check_legs(lambda legs: legs.append(dict(legs[100])))
    assert {"rows", "every flight of the CSV exactly once", "each (partition, transaction_id) of the log exactly once"} <= wrong


def test_a_row_that_replaced_another_is_seen_though_the_count_is_right() -> None:
    def replace(legs: list[Row]) -> None:
        legs[100] = dict(legs[101])

    wrong = check_legs(replace)
    assert "rows" not in wrong
    assert {"every flight of the CSV exactly once", "each (partition, transaction_id) of the log exactly once"} <= wrong


def test_a_flight_appended_twice_under_two_ids_is_seen() -> None:
    def again(legs: list[Row]) -> None:
        legs[0] = {**legs[1], "transaction_id": legs[0]["transaction_id"], "partition": legs[0]["partition"]}

    assert "every flight of the CSV exactly once" in check_legs(again)


def test_two_legs_with_one_number_are_seen() -> None:
    def same_number(legs: list[Row]) -> None:
        legs[-1]["leg"] = legs[-2]["leg"]

    wrong = check_legs(same_number)
    assert "legs of each aircraft are 1, 2, 3, … up to its flights in the CSV" in wrong
    assert "rows" not in wrong


def test_totals_decided_from_an_old_state_are_seen() -> None:
    def stale(legs: list[Row]) -> None:
        legs[-1]["total_distance"] -= 1

    assert check_legs(stale) == {"running totals add up, leg by leg"}


def test_flights_of_one_airport_out_of_order_are_seen() -> None:
    def swap(legs: list[Row]) -> None:
        mine = [row for row in legs if row["tail"] == "N1" and row["origin"] == "EWR"]
        mine[0]["scheduled"], mine[-1]["scheduled"] = mine[-1]["scheduled"], mine[0]["scheduled"]
        mine[0]["flight"], mine[-1]["flight"] = mine[-1]["flight"], mine[0]["flight"]

    assert "each airport's flights of an aircraft in time order" in check_legs(swap)


def test_a_wrong_distance_is_seen() -> None:
    def shorten(legs: list[Row]) -> None:
        legs[0]["distance"] -= 1

    assert check_legs(shorten) == {"miles"}


def test_a_row_that_is_not_in_the_log_is_seen() -> None:
    def beyond(legs: list[Row]) -> None:
        legs[0]["transaction_id"] = 10_000

    assert check_legs(beyond) == {"each (partition, transaction_id) of the log exactly once"}


@pytest.mark.parametrize("column", ["legs", "distance", "minutes"])
def test_a_wrong_total_of_one_aircraft_is_seen(column: str) -> None:
    flights = some_flights()
    _, aircraft, _ = pipeline(flights, seed=1)
    aircraft[1][column] += 1
    assert wrong_claims(check_aircraft(pa.Table.from_pylist(aircraft), flights)) == {"legs, miles and minutes of each as added up from the CSV"}


def test_an_aircraft_missing_or_there_twice_is_seen() -> None:
    flights = some_flights()
    _, aircraft, _ = pipeline(flights, seed=1)
    assert len(wrong_claims(check_aircraft(pa.Table.from_pylist(aircraft[1:]), flights))) == 2
    assert wrong_claims(check_aircraft(pa.Table.from_pylist([*aircraft, aircraft[0]]), flights)) == {"rows, one for each tail number"}


def test_empty_tables_fail() -> None:
    flights = some_flights()
    legs, aircraft, marks = pipeline(flights, seed=1)
    assert wrong_claims(check_flight_legs(pa.Table.from_pylist(legs).slice(0, 0), flights, marks))
    assert wrong_claims(check_aircraft(pa.Table.from_pylist(aircraft).slice(0, 0), flights))


def test_the_fold_of_the_csv_equals_the_fold_of_the_feed() -> None:
    flights = some_flights()
    legs, _, _ = pipeline(flights, seed=3)
    last = {row["tail"]: Totals(row["leg"], row["total_distance"], row["total_minutes"]) for row in sorted(legs, key=lambda row: row["leg"] or 0)}
    last.pop(None, None)
    assert fold(flights) == last
    assert Fleet().totals("N1") == Totals()
