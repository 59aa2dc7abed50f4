"""The data of the demo: what the installed package holds."""

from __future__ import annotations

from demo.flights import AIRPORTS, flights_archive, read_flights


def test_the_installed_package_holds_the_flights_of_three_airports() -> None:
    flights = read_flights(flights_archive())
    assert len(flights) == 336_776
    assert {found.origin for found in flights} == set(AIRPORTS)
    assert len({(found.origin, found.scheduled, found.carrier, found.flight) for found in flights}) == len(flights)
