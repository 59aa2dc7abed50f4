"""The report of recorded results: charts, the comparison with the run before, and nothing from another host."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.report.__main__ import write_report
from benchmarks.report.charts import Ratio, Series, line_chart, ratio_chart, shown
from benchmarks.report.comparison import changes
from benchmarks.report.history import KEPT, keep, known_seconds, previous, remember_seconds
from benchmarks.report.page import page
from benchmarks.report.style import STYLE

VOID = {"meta", "br"}


def figure(name: str, value: float, unit: str = "txn/s", **more: Any) -> dict[str, Any]:
    ratio: dict[str, Any] = {key: more.pop(key) for key in ("ratio", "ratio_to") if key in more}
    return {"name": name, "value": value, "unit": unit, "conditions": {"cores": 2, **more}, **ratio}


RECORDED = [
    figure("append.in_flight_1", 950.0, in_flight=1, partitions=1),
    figure("append.pipelined_1000", 110_000.0, in_flight=1000, partitions=1),
    figure("append.pipelined", 190_000.0, in_flight=16_000, partitions=1, ratio=0.31, ratio_to="write+fdatasync <floor>"),
    figure("append.pipelined_4p", 170_000.0, in_flight=16_000, partitions=4),
    figure("append.p99_ms_at_20k", 9.5, "ms", offered_per_s=20_000, percentiles_ms={"0.5": 2.7, "0.9": 5.0, "0.99": 9.5}),
    figure("kafka.append", 180_000.0, ratios="0.80 to 1.32", ratio=1.04, ratio_to="confluent-kafka tuned"),
    figure("kafka.p99_ms_at_20k", 9.0, "ms", ratios="0.50 to 0.90", ratio=0.7, ratio_to="confluent-kafka linger 5"),
    figure("metrics.append", 1.01, "ratio", ratios="0.98 to 1.02"),
]


class _Checked(HTMLParser):
    """Every element is closed, and nothing is loaded or linked."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "action", "xlink:href")]
        if tag in ("script", "iframe", "link", "img", "object"):
            self.loads.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _checked(html: str) -> str:
    parser = _Checked()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    assert parser.loads == []
    assert "url(" not in html
    assert "@import" not in html
    return " ".join(parser.texts)


def test_the_page_has_its_charts_and_every_figure_and_asks_no_other_host() -> None:
    html = page(RECORDED, measured="Measured today")
    text = _checked(html)
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "Throughput over appends in flight",
        "Latency distribution",
        "Beside peers and floors",
        "All figures",
    ]
    assert html.count("<svg") == 3
    for document in RECORDED:
        assert document["name"] in text
    assert "write+fdatasync <floor>" in text, "escaped once, read as it was"
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ElementTree.fromstring(svg)


def test_a_chart_places_more_to_the_right_and_higher() -> None:
    svg = ElementTree.fromstring(line_chart("t", [Series("s", [(1, 10.0), (1000, 90.0)])], x="x", y="y").partition("</svg>")[0] + "</svg>")
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in svg.iter("circle")]
    assert dots[0][0] < dots[1][0]
    assert dots[0][1] > dots[1][1]
    assert all(0 <= at <= 720 and 0 <= up <= 320 for at, up in dots)


def test_ratios_that_are_better_and_worse_lie_on_their_sides_of_one() -> None:
    svg = ElementTree.fromstring(ratio_chart("t", [Ratio("fast", 2.0, 1.5, 2.5, True), Ratio("slow", 0.5, 0.4, 0.6, False)]))
    one = next(float(line.attrib["x1"]) for line in svg.iter("line") if line.attrib["class"] == "one")
    fast, slow = [(float(dot.attrib["cx"]), dot.attrib["class"]) for dot in svg.iter("circle")]
    assert fast[0] == pytest.approx(2 * one - slow[0], abs=0.2)
    assert fast[1] == "dot better"
    assert slow[0] < one
    assert slow[1] == "dot worse"
    verdicts = re.findall(r'<circle class="dot (better|worse)"', page(RECORDED))
    assert verdicts == ["worse", "better", "better", "better"], "a ratio of times below 1 is better"


def test_charts_without_a_point_are_refused_and_left_out_of_the_page() -> None:
    with pytest.raises(ValueError, match="without a point"):
        line_chart("t", [], x="x", y="y")
    with pytest.raises(ValueError, match="without a row"):
        ratio_chart("t", [])
    assert "<svg" not in _page_text([figure("feed.data", 5.0)])


def _page_text(documents: list[dict[str, Any]]) -> str:
    html = page(documents)
    _checked(html)
    return html


def test_changes_are_judged_by_what_is_better_for_the_unit() -> None:
    before = [
        figure("rate", 100.0),
        figure("append.single_p50_ms", 1.0, "ms"),
        figure("same", 100.0),
        figure("kept", 1.0),
        figure("gone", 1.0),
        figure("unit", 1.0, "s"),
    ]
    after = [
        figure("rate", 200.0),
        figure("append.single_p50_ms", 2.0, "ms"),
        figure("same", 108.0),
        figure("kept", 1.0),
        figure("new", 1.0),
        figure("unit", 2.0, "ms"),
    ]
    found = {change.name: (change.factor, change.verdict) for change in changes(before, after)}
    assert found == {"rate": (2.0, "better"), "append.single_p50_ms": (0.5, "worse"), "same": (pytest.approx(1.08), "same")}
    assert [change.name for change in changes(before, after)] == ["append.single_p50_ms", "rate", "same"]
    text = _checked(page(after, before, before_at="2026-11-24T10-00-00"))
    assert "1 figures are better, 1 worse, and 1 differ by less" in text


def test_results_are_kept_and_the_newest_is_compared_with(tmp_path: Path) -> None:
    latest = tmp_path / "latest.json"
    keep(latest)
    assert previous(latest) == ("", [])
    for number in range(KEPT + 3):
        latest.write_text(json.dumps([figure("rate", float(number + 1))]))
        os.utime(latest, (1_700_000_000 + number, 1_700_000_000 + number))
        keep(latest)
    remember_seconds(latest, "all", 12.34)
    assert known_seconds(latest, "all") == 12.3
    assert known_seconds(latest, "append") is None
    assert len(list((tmp_path / "history").glob("[0-9]*.json"))) == KEPT
    at, documents = previous(latest)
    assert documents[0]["value"] == KEPT + 3
    latest.write_text(json.dumps([figure("rate", 100.0)]))
    write_report(latest, tmp_path / "report.html")
    text = _checked((tmp_path / "report.html").read_text())
    assert f"Compared with the run of {at}" in text
    assert "better by" in text


@pytest.mark.parametrize(("value", "text"), [(0.0123, "0.0123"), (999.0, "999"), (1000.0, "1k"), (191_234.0, "191k"), (2.5e6, "2.5M")])
def test_numbers_are_short(value: float, text: str) -> None:
    assert shown(value) == text


def test_colors_are_readable_on_their_paper_in_light_and_dark() -> None:
    light, dark = re.findall(r":root\{(.*?)\}", STYLE, re.DOTALL)
    for colors in (light, dark):
        found = dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", colors))
        for name, color in found.items():
            if name not in ("paper", "line"):
                assert _contrast(color, found["paper"]) >= 4.5, (name, color)


def _contrast(one: str, other: str) -> float:
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
