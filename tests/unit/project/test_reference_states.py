"""The reference page of states is what the tables of transitions give."""

from __future__ import annotations

import re

import pytest

from tools import reference_states


def test_the_page_is_what_the_tables_give() -> None:
    assert reference_states.PAGE.read_text() == reference_states.page(), "run: python tools/reference_states.py --write"


@pytest.mark.parametrize(("place", "title"), list(enumerate(title for title, _, _ in reference_states.SECTIONS)))
def test_a_diagram_has_the_transitions_of_its_table_and_no_others(place: int, title: str) -> None:
    table = reference_states.SECTIONS[place][2]
    _, _, section = reference_states.PAGE.read_text().partition(f"## {title}\n")
    diagram = section.partition("```mermaid\n")[2].partition("```")[0]
    arrows = re.findall(r"^ +(\w+) --> (\w+)$", diagram, re.MULTILINE)
    declared = [(source, target) for source, found in table.transitions.items() for target in found]
    assert arrows == [(source.replace(" ", "_"), target.replace(" ", "_")) for source, target in declared]
