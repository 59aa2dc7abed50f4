"""Times without an offset, in each kind of zone that Spark names."""

from __future__ import annotations

import pytest

from waltz_delta.base.zones import instant_ms
from waltz_log.errors import InvalidSetting

NOON_MS = 1_795_262_400_000
"""2026-11-21 12:00 in UTC."""


@pytest.mark.parametrize(
    ("zone", "hour"),
    [("UTC", 12), ("Z", 12), ("Europe/Berlin", 13), ("America/New_York", 7), ("+02:00", 14), ("UTC-5", 7), ("GMT+5:30", 17), ("Etc/GMT+3", 9)],
)
def test_a_time_without_an_offset_is_one_of_the_zone(zone: str, hour: int) -> None:
    minutes = 30 if zone == "GMT+5:30" else 0
    assert instant_ms(f"2026-11-21 {hour:02}:{minutes:02}:00.0", zone) == NOON_MS


def test_an_offset_in_the_text_counts_and_the_first_of_two_times_is_meant() -> None:
    assert instant_ms("2026-11-21T13:00:00+01:00", "America/New_York") == NOON_MS
    assert instant_ms("2026-10-25 02:30:00", "Europe/Berlin") == instant_ms("2026-10-25 00:30:00", "UTC")


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="not a time zone"):
        instant_ms("2026-11-21 13:00:00", "Nowhere/Else")
