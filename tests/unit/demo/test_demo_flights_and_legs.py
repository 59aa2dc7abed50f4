from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from demo.flights import Flight, read_flights
from demo.legs import HEADER_LEG, HEADER_UNNAMED, Fleet, NumberingBroken, Totals, leg_data, partition_of

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,"
    "time_hour"
)


def archive_of(tmp_path: Path, *rows: str) -> Path:
    archive = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("flights.csv", "\n".join([HEADER, *rows]) + "\n")
    return archive


def flight(**changes: Any) -> Flight:
    known = Flight("EWR", "IAH", "UA", 1545, "N14228", "2013-01-01", "2013-01-01T10:15:00Z", 2, 11, 227, 1400)
    return known._replace(**changes)


def test_a_row_becomes_a_flight_with_missing_values_as_none(tmp_path: Path) -> None:
    archive = archive_of(
        tmp_path,
        "2013,1,1,NA,515,NA,NA,819,NA,UA,1545,NA,EWR,IAH,NA,1400,5,15,2013-01-01T10:00:00Z",
        "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    )
    cancelled, flown = read_flights(archive)
    assert cancelled == flight(tail=None, dep_delay=None, arr_delay=None, air_time=None)
    assert flown == flight()


def test_flights_come_in_time_order_and_only_of_the_airport_asked_for(tmp_path: Path) -> None:
    archive = archive_of(
        tmp_path,
        "2013,12,1,1,1,0,1,1,0,UA,1,N1,EWR,IAH,10,100,5,1,2013-12-01T10:00:00Z",
        "2013,2,1,1,1,0,1,1,0,UA,2,N1,EWR,IAH,10,100,5,1,2013-02-01T10:00:00Z",
        "2013,1,1,1,1,0,1,1,0,UA,3,N1,JFK,IAH,10,100,5,1,2013-01-01T10:00:00Z",
    )
    assert [found.flight for found in read_flights(archive, "EWR")] == [2, 1]


def test_a_leg_carries_the_totals_of_its_aircraft_including_itself() -> None:
    totals = Totals(4, 1000, 300).plus(flight())
    document = json.loads(leg_data(flight(), totals))
    assert (document["leg"], document["total_distance"], document["total_minutes"]) == (5, 2400, 527)
    assert (document["tail"], document["origin"], document["scheduled"]) == ("N14228", "EWR", "2013-01-01T10:15:00Z")


def test_a_flight_without_air_time_adds_a_leg_and_miles_but_no_minutes() -> None:
    assert Totals(1, 10, 5).plus(flight(air_time=None)) == Totals(2, 1410, 5)


def test_a_flight_of_an_unknown_aircraft_has_no_leg() -> None:
    assert json.loads(leg_data(flight(tail=None), None)).keys().isdisjoint({"leg", "total_distance", "total_minutes"})


def test_all_legs_of_an_aircraft_go_to_one_partition_and_unknown_ones_are_spread() -> None:
    assert partition_of(flight(), 4) == partition_of(flight(origin="JFK", flight=7), 4)
    assert {partition_of(flight(tail=None, flight=number), 4) for number in range(50)} == {0, 1, 2, 3}


def test_the_fleet_knows_the_last_leg_of_the_feed() -> None:
    fleet = Fleet()
    first = Totals().plus(flight())
    fleet.apply([(HEADER_LEG, leg_data(flight(), first)), (HEADER_UNNAMED, leg_data(flight(tail=None), None))])
    fleet.apply([(HEADER_LEG, leg_data(flight(), first.plus(flight())))])
    assert fleet.totals("N14228") == Totals(2, 2800, 454)
    assert fleet.totals("N1") == Totals()


@pytest.mark.parametrize("leg", [1, 3])
def test_the_fleet_refuses_a_leg_that_repeats_or_skips_a_number(leg: int) -> None:
    fleet = Fleet()
    fleet.apply([(HEADER_LEG, leg_data(flight(), Totals(1, 0, 0)))])
    with pytest.raises(NumberingBroken, match="N14228"):
        fleet.apply([(HEADER_LEG, leg_data(flight(), Totals(leg, 0, 0)))])
