"""JSON documents of the benchmarks that decode: the demo's 14 columns, and 100 columns."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["FLIGHT", "REQUIRED_WIDE", "WIDE", "flight", "wide"]

FLIGHT = (
    "tail STRING, carrier STRING, origin STRING, dest STRING, flight STRING, leg INT, dep_delay INT, arr_delay INT, distance INT, air_time INT, "
    "hour INT, minute INT, day DATE, at TIMESTAMP"
)
_KINDS = (("s", "STRING", 40), ("i", "INT", 40), ("d", "DOUBLE", 18))
WIDE = ", ".join([*(f"{letter}{n} {kind}" for letter, kind, count in _KINDS for n in range(count)), "day DATE", "at TIMESTAMP"])
REQUIRED_WIDE = WIDE.replace(" STRING", " STRING NOT NULL", 10)


def flight(n: int, tail: int | None = None) -> bytes:
    """`tail`: the number of the aircraft; by default one of 4,000."""
    when = {"day": f"2013-01-{n % 28 + 1:02}", "at": f"2013-01-{n % 28 + 1:02}T{n % 24:02}:00:00Z"}
    numbers = {"leg": n % 9, "dep_delay": n % 60, "arr_delay": n % 60 - 20, "distance": 2475, "air_time": n % 400, "hour": n % 24, "minute": n % 60}
    texts = {"tail": f"N{n % 4000 if tail is None else tail}", "carrier": "UA", "origin": "EWR", "dest": "LAX", "flight": f"UA{n}"}
    return json.dumps({**texts, **numbers, **when}).encode()


def wide(n: int) -> bytes:
    values: dict[str, Any] = {f"s{at}": f"value {n + at}" for at in range(40)}
    values |= {f"i{at}": n + at for at in range(40)} | {f"d{at}": (n + at) / 7 for at in range(18)}
    return json.dumps(values | {"day": f"2013-01-{n % 28 + 1:02}", "at": f"2013-01-{n % 28 + 1:02}T{n % 24:02}:00:00Z"}).encode()
