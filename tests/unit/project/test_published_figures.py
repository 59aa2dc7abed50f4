"""Figures in the docs come from measured runs, each table says which command measures it, and what is beside Kafka is in those tables alone."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from benchmarks.setting import machine_conditions
from tools import reference_figures
from tools.reference_figures import BLOCK, NOT_PUBLISHED, PAGES, TABLES, page, publish, read

ROOT = Path(__file__).parents[3]
COMMAND = re.compile(r"`(?:make [a-z-]+|python -m [a-z._]+)")
UNIT = re.compile(r"\b(?:ns|µs|us|ms|s|seconds|MB|GB|MB/s|txn/s|rows/s|per second|rate)\b|/s\b")
MEASURED_ROW = re.compile(r"\|\s*\**[\d.,]+(?: to [\d.,]+)?\s*(?:k|ns|µs|ms|s|MB|GB|/s|MB/s|txn/s|rows/s)?\**\s*\|")


def without_blocks(text: str) -> str:
    return BLOCK.sub("", text)


def tables_without_a_command(text: str) -> list[str]:
    """The heads of tables of figures whose section has no command before them."""
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        for table in re.finditer(r"(?:^\|.*\n)+", section, re.MULTILINE):
            head, _, *rows = table[0].splitlines()
            figures = sum(bool(MEASURED_ROW.search(f"{row}|") and UNIT.search(head + row)) for row in rows)
            if rows and figures == len(rows) and not COMMAND.search(section[: table.start()]):
                found.append(rows[0])
    return found


def test_no_published_figure_is_of_a_quick_run() -> None:
    assert [name for name, each in read().items() if "quick" in each["conditions"]] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_each_table_of_a_page_has_rows_and_a_command_before_it(path: Path) -> None:
    text = path.read_text()
    names = [found[2] for found in BLOCK.finditer(text)]
    assert names
    assert set(names) <= set(TABLES)
    for found in BLOCK.finditer(text):
        section = text[: found.start()].rpartition("\n## ")[2]
        assert COMMAND.search(section) or COMMAND.search(text[: found.start()]), found[2]
        assert found[0].count("\n|") > 2 or NOT_PUBLISHED in found[0], found[2]


def test_an_edited_figure_is_noticed(tmp_path: Path) -> None:
    edited = tmp_path / "page.md"
    edited.write_text(re.sub(r"\d", "9", PAGES[1].read_text()))
    assert page(edited) != edited.read_text()


def test_a_quick_run_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_figures, "PUBLISHED", tmp_path / "published.json")
    run = tmp_path / "latest.json"
    conditions = {"commit": "0123456789ab", "date": "2026-11-28", "processor": "a processor"}
    measured = {"name": "a", "value": 1, "unit": "s"}
    run.write_text(json.dumps([{**measured, "conditions": conditions}]))
    publish([run])
    assert list(read(tmp_path / "published.json")) == ["a"]
    for name, value, lacking in (("processor", "", "has no processor"), ("date", "", "no date"), ("commit", "0123456789ab+", "no commit has")):
        run.write_text(json.dumps([{**measured, "conditions": {**conditions, name: value}}]))
        with pytest.raises(SystemExit, match=lacking):
            publish([run])
    run.write_text('[{"name": "a", "value": 2, "unit": "s", "conditions": {"quick": "yes"}}]')
    with pytest.raises(SystemExit, match="quick"):
        publish([run])


def test_a_run_states_its_commit_its_day_and_its_processor() -> None:
    found = machine_conditions(quick=True)
    assert re.fullmatch(r"[0-9a-f]{12}\+?", found["commit"])
    assert date.fromisoformat(found["date"])
    assert found["processor"]
    own = {**found, "rounds": 5, "warm_rounds": 3}
    assert found["processor"] in reference_figures._conditions("a", {"a": {"conditions": own}})


def test_every_published_figure_has_its_commit_and_day() -> None:
    """Of runs that did not record theirs yet: those of the commit that published them."""
    for name, each in read().items():
        own = each["conditions"]
        assert {"commit", "date", "processor"} <= own.keys() or {"published_commit", "published_date"} <= own.keys(), name


def test_a_peer_that_did_not_hold_the_rate_is_shown_with_what_was_measured() -> None:
    conditions = {"platform": "1 (1 to 1)", "ratios": "1 to 1", "peers": {}, "could_not_hold": {"peer linger 0": "12,300"}}
    table = reference_figures._compared({"a": "load"}, "ms", {"a": {"ratio": 1.0, "conditions": conditions}})
    assert "peer linger 0: did not hold the rate, 12,300 in the last round of warm-up" in table


def test_a_row_beside_kafka_states_what_is_in_flight_its_settings_and_each_sides_durability() -> None:
    own = {
        "platform": "1 (1 to 1)",
        "ratios": "1 to 1",
        "peers": {},
        "bytes_in_flight": 6_553_600,
        "kafka": {"acks": "all", "linger.ms": 10},
        "platform_durability": "fdatasync at 2 of 3 replicas",
        "kafka_durability": "acks=all: synced later",
    }
    table = reference_figures._compared({"a": "load"}, "ms", {"a": {"ratio": 1.0, "conditions": own}})
    assert "| load<br>6.6 MB in flight; Kafka: `linger.ms=10` |" in table
    assert "The platform answers after fdatasync at 2 of 3 replicas.\nKafka: acks=all: synced later." in table


def test_a_figure_within_a_sentence_is_generated(tmp_path: Path) -> None:
    text = tmp_path / "page.md"
    text.write_text("It needs <!-- figure: a.ms -->0 ms<!-- end --> each.\n")
    assert page(text, {"a.ms": {"value": 23.1, "unit": "ms"}}) == "It needs <!-- figure: a.ms -->23.1 ms<!-- end --> each.\n"


COST = r"\b(?:costs?|needs?|took|measured|about)\b[^.|\n]{0,60}?\d[\d.,]* (?:µs|us|ms|MB|MiB)\b"
HAND_WRITTEN = re.compile(rf"{COST}|\d m?s at the median", re.IGNORECASE)
SETTINGS_OR_LIMITS = re.compile(r"`[a-z_]+`|limit|at most|up to")


@pytest.mark.parametrize("path", sorted([*(ROOT / "docs/guides").glob("*.md"), *(ROOT / "docs/concepts").glob("*.md")]), ids=lambda path: path.stem)
def test_no_measured_cost_in_guides_and_concepts_is_written_by_hand(path: Path) -> None:
    text = reference_figures.INLINE.sub("", without_blocks(path.read_text()))
    assert [line for line in text.splitlines() if HAND_WRITTEN.search(line) and not SETTINGS_OR_LIMITS.search(line)] == []


def test_a_measured_cost_written_by_hand_is_noticed() -> None:
    for line in ("1,000 of them need about 40 MB with their streams", "costs 14 ms of processor time", "an append costs all together 5.2 ms"):
        assert HAND_WRITTEN.search(line)


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_a_table_of_figures_has_the_command_that_measures_it(path: Path) -> None:
    if path.parent.name != "decisions":  # records of their time, which name their commands at the end
        assert tables_without_a_command(without_blocks(path.read_text())) == []


def test_a_table_without_a_command_is_noticed() -> None:
    table = "| in flight | rate |\n|---|---|\n| one | 5 k |\n"
    assert tables_without_a_command(f"## Speed\n\n{table}") == ["| one | 5 k |"]
    assert tables_without_a_command(f"## Speed\n\n`make bench`:\n\n{table}") == []


def test_figures_beside_kafka_are_generated() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for paragraph in without_blocks(path.read_text()).split("\n\n"):
            if "Kafka" in paragraph:
                assert re.search(r"\d(?:\.\d+)? ms\b|against \d|\d k\b", paragraph) is None, f"{path.name}: {paragraph}"
