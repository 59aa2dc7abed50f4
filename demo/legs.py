"""The content of a leg, and the state that the dispatchers fold from the feed: last leg and running totals of every aircraft.

A leg carries the totals of its aircraft up to and including itself. The `aircraft` table is then the latest leg of each aircraft: an event that
carries the state can be merged again and again, an increment cannot.

Pure. Invariant: the legs of one aircraft arrive as 1, 2, 3, ... without a gap; anything else means that a lock failed, and raises.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from demo.flights import Flight

__all__ = ["HEADER_LEG", "HEADER_UNNAMED", "LOCK_NAME", "TOPIC", "Fleet", "NumberingBroken", "Totals", "leg_data", "partition_of"]

TOPIC = "airline/legs"
"""The topic of all flights."""

HEADER_LEG = 1
"""The transaction is a leg of a known aircraft."""

HEADER_UNNAMED = 0
"""The flight's aircraft is not known: no tail number, no leg, no lock."""

LOCK_NAME = "aircraft"


class NumberingBroken(AssertionError):
    """Two legs of one aircraft have the same number, or one is missing."""


class Totals(NamedTuple):
    """One aircraft so far: how many legs, how many miles, how many minutes in the air."""

    legs: int = 0
    distance: int = 0
    minutes: int = 0

    def plus(self, flight: Flight) -> Totals:
        return Totals(self.legs + 1, self.distance + flight.distance, self.minutes + (flight.air_time or 0))


def partition_of(flight: Flight, partitions: int) -> int:
    """The same for every leg of one aircraft in every process, because locks hold within one partition. Flights of unknown aircraft are spread."""
    key = flight.tail if flight.tail is not None else f"{flight.carrier}{flight.flight}"
    return zlib.crc32(key.encode()) % partitions


def leg_data(flight: Flight, totals: Totals | None) -> bytes:
    """The transaction's data: the flight as the leg that brings its aircraft to `totals` (None: the aircraft is not known)."""
    document: dict[str, Any] = {"tail": flight.tail}
    if totals is not None:
        document |= {"leg": totals.legs, "total_distance": totals.distance, "total_minutes": totals.minutes}
    document |= {
        "origin": flight.origin,
        "dest": flight.dest,
        "carrier": flight.carrier,
        "flight": flight.flight,
        "date": flight.date,
        "scheduled": flight.scheduled,
        "dep_delay": flight.dep_delay,
        "arr_delay": flight.arr_delay,
        "air_time": flight.air_time,
        "distance": flight.distance,
    }
    return json.dumps(document, separators=(",", ":")).encode()


class Fleet:
    """The state of every aircraft according to the feed so far."""

    def __init__(self) -> None:
        self._aircraft: dict[str, Totals] = {}

    def totals(self, tail: str) -> Totals:
        return self._aircraft.get(tail, Totals())

    def apply(self, legs: Iterable[tuple[int, bytes]]) -> None:
        """Applies (header, data) of transactions in feed order."""
        for header, data in legs:
            if header != HEADER_LEG:
                continue
            document = json.loads(data)
            tail, leg = document["tail"], document["leg"]
            last = self._aircraft.get(tail)
            if leg != (1 if last is None else last.legs + 1):
                raise NumberingBroken(f"legs of one aircraft are not dense: tail={tail} last={last and last.legs} next={leg}")
            self._aircraft[tail] = Totals(leg, document["total_distance"], document["total_minutes"])
