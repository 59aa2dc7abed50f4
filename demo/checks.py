"""What must hold at the end, whatever happened during the run: compares both tables with the flights in the CSV.

Pure: from tables and flights to results; never reads the log, a checkpoint or any other state of the pipeline. The interleaving of the airports
matters to no check: each states a fact that every correct run shares.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from demo.flights import Flight
from demo.legs import Totals

__all__ = ["Result", "check_aircraft", "check_flight_legs", "fold"]


class Result(NamedTuple):
    """One check: the expected and the found value, and the first rows that differ."""

    table: str
    claim: str
    expected: str
    found: str
    ok: bool
    examples: str = ""


def fold(flights: Iterable[Flight]) -> dict[str, Totals]:
    """Every aircraft after all of its flights, in any order."""
    fleet: dict[str, Totals] = {}
    for flight in flights:
        if flight.tail is not None:
            fleet[flight.tail] = fleet.get(flight.tail, Totals()).plus(flight)
    return fleet


def check_flight_legs(table: pa.Table, flights: Sequence[Flight], high_water_marks: Mapping[int, int]) -> list[Result]:
    """`table` has the columns of a leg with `partition` and `transaction_id`, in any order."""
    rows = _rows(
        _with_iso_times(table),
        "partition",
        "transaction_id",
        "tail",
        "leg",
        "total_distance",
        "total_minutes",
        "origin",
        "carrier",
        "flight",
        "scheduled",
    )
    rows_by_tail: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["tail"] is not None:
            rows_by_tail[row["tail"]].append(row)
    for legs in rows_by_tail.values():
        legs.sort(key=lambda row: (row["leg"] or 0, row["partition"], row["transaction_id"]))
    by_flight = {(flight.origin, flight.scheduled, flight.carrier, flight.flight): flight for flight in flights}
    return [
        _equal("flight_legs", "rows", len(flights), len(rows)),
        _every_flight_once(rows, flights),
        _ids_once_and_dense(rows, high_water_marks),
        _legs_dense(rows_by_tail, fold(flights)),
        _equal("flight_legs", "miles", sum(flight.distance for flight in flights), sum(table["distance"].to_pylist())),
        _running_totals(rows_by_tail, by_flight),
        _airport_order(rows_by_tail),
    ]


def check_aircraft(table: pa.Table, flights: Sequence[Flight]) -> list[Result]:
    """`table` has tail, legs, distance and minutes, one row for each aircraft."""
    expected = fold(flights)
    rows = _rows(table, "tail", "legs", "distance", "minutes")
    found = {row["tail"]: Totals(row["legs"], row["distance"], row["minutes"]) for row in rows}
    wrong = [f"{tail}: {found.get(tail)} is not {expected.get(tail)}" for tail in _ordered(expected, found) if expected.get(tail) != found.get(tail)]
    return [
        _equal("aircraft", "rows, one for each tail number", len(expected), len(rows)),
        _none_wrong("aircraft", "legs, miles and minutes of each as added up from the CSV", wrong),
    ]


def _every_flight_once(rows: list[dict[str, Any]], flights: Sequence[Flight]) -> Result:
    expected = Counter((flight.origin, flight.scheduled, flight.carrier, flight.flight, flight.tail) for flight in flights)
    found = Counter((*_flight_key(row), row["tail"]) for row in rows)
    missing, foreign = expected - found, found - expected
    wrong = [f"missing {key}" for key in missing.elements()] + [f"too often or unknown {key}" for key in foreign.elements()]
    return _none_wrong("flight_legs", "every flight of the CSV exactly once", wrong)


def _ids_once_and_dense(rows: list[dict[str, Any]], high_water_marks: Mapping[int, int]) -> Result:
    ids: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        ids[row["partition"]][row["transaction_id"]] += 1
    wrong = []
    for partition in sorted(set(ids) | set(high_water_marks)):
        seen, mark = ids[partition], high_water_marks.get(partition, -1)
        wrong += [f"({partition}, {number}) {count} times" for number, count in seen.items() if count > 1]
        wrong += [f"({partition}, {number}) missing" for number in range(mark + 1) if number not in seen]
        wrong += [f"({partition}, {number}) is not in the log" for number in seen if not 0 <= number <= mark]
    return _none_wrong("flight_legs", "each (partition, transaction_id) of the log exactly once", wrong)


def _legs_dense(rows_by_tail: Mapping[str, list[dict[str, Any]]], expected: Mapping[str, Totals]) -> Result:
    wrong = []
    for tail in _ordered(expected, rows_by_tail):
        count = expected[tail].legs if tail in expected else 0
        legs = [row["leg"] for row in rows_by_tail.get(tail, ())]
        if legs != list(range(1, count + 1)):
            odd = next((f"{found} where {leg} belongs" for leg, found in enumerate(legs, 1) if found != leg), f"{len(legs)} of {count} legs")
            wrong.append(f"{tail}: {odd}")
    return _none_wrong("flight_legs", "legs of each aircraft are 1, 2, 3, … up to its flights in the CSV", wrong)


def _running_totals(rows_by_tail: Mapping[str, list[dict[str, Any]]], by_flight: Mapping[tuple[Any, ...], Flight]) -> Result:
    """Each leg's totals are those of the leg before plus its own flight: every dispatcher decided from the newest state."""
    wrong = []
    for tail in sorted(rows_by_tail):
        totals = Totals()
        for row in rows_by_tail[tail]:
            flight = by_flight.get(_flight_key(row))
            totals = totals if flight is None else totals.plus(flight)
            told = Totals(row["leg"], row["total_distance"], row["total_minutes"])
            if told != totals:
                wrong.append(f"{tail}: {told} is not {totals}")
                break
    return _none_wrong("flight_legs", "running totals add up, leg by leg", wrong)


def _airport_order(rows_by_tail: Mapping[str, list[dict[str, Any]]]) -> Result:
    wrong = []
    for tail in sorted(rows_by_tail):
        last: dict[str, str] = {}
        for row in rows_by_tail[tail]:
            origin, scheduled = row["origin"], row["scheduled"]
            if scheduled < last.get(origin, ""):
                wrong.append(f"{tail} leg {row['leg']}: {origin} {scheduled} after {last[origin]}")
            last[origin] = scheduled
    return _none_wrong("flight_legs", "each airport's flights of an aircraft in time order", wrong)


def _rows(table: pa.Table, *columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.select(list(columns)).to_pylist()
    return rows


def _with_iso_times(table: pa.Table) -> pa.Table:
    """Scheduled departures in the format of the flights: ISO 8601 in UTC, without fractions."""
    seconds = table["scheduled"].cast(pa.timestamp("s", tz="UTC"))
    return table.set_column(table.schema.get_field_index("scheduled"), "scheduled", pc.strftime(seconds, format="%Y-%m-%dT%H:%M:%SZ"))


def _flight_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["origin"], row["scheduled"], row["carrier"], row["flight"]


def _ordered(*tails: Iterable[str]) -> list[str]:
    return sorted({tail for some in tails for tail in some}, key=str)


def _equal(table: str, claim: str, expected: int, found: int | None) -> Result:
    return Result(table, claim, f"{expected:,}", "none" if found is None else f"{found:,}", expected == found)


def _none_wrong(table: str, claim: str, wrong: list[str]) -> Result:
    return Result(table, claim, "0 wrong", f"{len(wrong):,} wrong", not wrong, "; ".join(wrong[:3]))
