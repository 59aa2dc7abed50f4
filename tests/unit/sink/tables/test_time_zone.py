"""A table is filled with one time zone: it is recorded, and another one is refused where it matters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from waltz_delta.settings import DecodeSettings, OutputSettings, ProjectionSettings, TargetSettings
from waltz_delta.tables.time_zone import depends_on_zone, other_zone, recorded_zone, refuse_other_zone, with_zone, zone_app_id
from waltz_log.errors import InvalidSetting


def _session(zone: str) -> Any:
    return SimpleNamespace(conf=SimpleNamespace(get={"spark.sql.session.timeZone": zone}.__getitem__))


def _table(properties: Mapping[str, str], versions: Mapping[str, int] = MappingProxyType({})) -> Any:
    return SimpleNamespace(properties=lambda: dict(properties), versions=lambda: dict(versions))


def test_a_table_goes_on_with_the_zone_that_it_was_created_with() -> None:
    properties = with_zone({"waltz.mode": "append"}, _session("Europe/Berlin"))
    assert properties == {"waltz.mode": "append", "waltz.timeZone": "Europe/Berlin"}
    for table in (_table(properties), _table({}, {"waltz:key:0": 4, zone_app_id(_session("Europe/Berlin")): 1})):
        refuse_other_zone(_session("Europe/Berlin"), "t", table)
        with pytest.raises(InvalidSetting, match=r"timeZone is UTC, and the table was filled with Europe/Berlin: .* set the property waltz.timeZone"):
            refuse_other_zone(_session("UTC"), "t", table)
    assert other_zone(_table({}, {"waltz:key:0": 4}), _session("UTC")) is None, "a table that does not say"
    assert other_zone(_table(with_zone({}, _session("Etc/UTC"))), _session("Z")) is None, "names of one zone"


def test_the_property_that_a_user_sets_counts_more_than_the_first_commit() -> None:
    assert recorded_zone(_table({"waltz.timeZone": "UTC"}, {zone_app_id(_session("Asia/Tokyo")): 1})) == "UTC"


def test_the_zone_matters_to_times_in_the_data_and_to_sql() -> None:
    target = TargetSettings(table="t")
    assert not depends_on_zone(OutputSettings(target=target))
    assert not depends_on_zone(OutputSettings(target=target, decode=DecodeSettings(format="json", columns="n INT")))
    assert depends_on_zone(OutputSettings(target=target, decode=DecodeSettings(format="json", columns="at timestamp")))
    assert depends_on_zone(OutputSettings(target=target, projection=ProjectionSettings(select="CAST(timestamp AS DATE) AS day")))
