"""The generated pages of docs/reference are fresh, and complete: every setting, command and log event is there."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.exceptions import TyperException

from tools import reference, reference_commands, reference_events, reference_settings
from tools.log_events import MEANINGS
from tools.plain_english import words
from waltz_log.cli.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.stem)
def test_a_generated_page_is_fresh(page: Path) -> None:
    assert page.read_text() == reference.PAGES[page](), "run: make reference"


def test_every_model_of_settings_is_on_the_page() -> None:
    bases: dict[str, set[str]] = {}
    for path in (ROOT / "platform").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):  # some modules have a class of the same name, and folders have no order
                bases.setdefault(node.name, set()).update(ast.unparse(base) for base in node.bases)
    defined = {name for name, of in bases.items() if "Settings" in of or any("Settings" in bases.get(base, ()) for base in of)}
    models = [section.model for section in reference_settings.SECTIONS]
    shown = {each.__name__ for model in models for each in (*model.__mro__, *reference_settings.models_in(model))}
    assert defined - shown == set(reference_settings.INTERNAL)


def test_five_settings_matter_and_each_is_one() -> None:
    models = {section.heading: section.model for section in reference_settings.SECTIONS}
    assert len({places[0][1] for places, _ in reference_settings.MATTER}) == 5
    assert all(name in models[heading].model_fields for places, _ in reference_settings.MATTER for heading, name in places)


def test_every_setting_says_how_to_choose_it() -> None:
    fields = [
        (path, field.description or "") for section in reference_settings.SECTIONS for path, field in reference_settings.fields_of(section.model)
    ]
    assert len(fields) > 140
    assert [path for path, text in fields if not text.endswith(".") or list(words(text))] == []


def test_every_command_has_help_and_an_example_that_it_accepts() -> None:
    commands = dict(reference_commands.commands())
    assert set(EXAMPLES) == set(commands)
    for name, example in EXAMPLES.items():
        typed = shlex.split(example.split(" > ")[0])
        assert typed[: len(name.split()) + 1] == ["waltz", *name.split()]
        reference_commands.parse(typed[1:])
    nameless = [(name, parameter.name) for name, command in commands.items() for parameter in command.params if not parameter.help]
    assert nameless == []


@pytest.mark.parametrize(
    "typed", ["cluster statuss", "cluster", "topic describe", "read c --nowhere", "topic create c n --partitions many", "doctor x"]
)
def test_a_command_that_would_be_refused_is_found(typed: str) -> None:
    with pytest.raises(TyperException):
        reference_commands.parse(typed.split())


def test_every_log_event_has_a_meaning_in_plain_words_and_a_section() -> None:
    calls = reference_events.calls()
    assert {call.event for call in calls} == set(MEANINGS)
    assert [event for event, meaning in MEANINGS.items() if not meaning.endswith(".") or list(words(meaning))] == []
    places = [place for here in reference_events.SECTIONS.values() for place in here]
    assert [call.path for call in calls if not reference_events.is_in(call.path, places)] == []


def test_events_are_read_from_every_form_of_call() -> None:
    source = """
log.info("one", a=1)
(log.info if fine else log.warning)("two", b=2, **asdict(finding))
log.exception("three")
log.error("four", exc_info=error)
math.log(3)
"""
    found = {call.event: (call.levels, call.fields) for call in reference_events.calls_in(source, "x.py")}
    assert found == {
        "one": (("info",), ("a",)),
        "two": (("info", "warning"), ("b", *reference_events.EXPANDED["asdict(finding)"])),
        "three": (("error",), ("exception",)),
        "four": (("error",), ("exception",)),
    }


@pytest.mark.parametrize(
    "source",
    [
        'log.info(f"about {x}")',
        "log.info(event)",
        "tell = log.info",
        "report(log)",
        'log.bind(a=1).info("x")',
        "log.info()",
        'log.info("x", **other)',
    ],
)
def test_a_call_of_which_the_event_cannot_be_read_is_refused(source: str) -> None:
    with pytest.raises(reference_events.UnreadableCall):
        list(reference_events.calls_in(source, "x.py"))


def test_the_docs_show_only_events_that_exist() -> None:
    shown = {
        (path.name, quoted or plain)
        for path in (ROOT / "docs").rglob("*.md")
        for quoted, plain in re.findall(r'event=(?:"([^"]+)"|(\w+))', path.read_text())
    }
    assert len(shown) > 4
    assert {(page, event) for page, event in shown if event not in MEANINGS} == set()
