"""The pages of the API say something, in plain words, about every public class, method and property."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

import pytest

from tools.plain_english import words
from tools.reference_api import PAGES, Entry, Member, entries, members, signature
from waltz_delta import DeltaUpsert
from waltz_log.errors import WaltzError

ENTRIES = [pytest.param(entry, id=f"{package.name}.{entry.name}") for page in PAGES for package in page.packages for entry in entries(package)]


def described(entry: Entry) -> Iterator[tuple[str, str]]:
    """What must have a docstring, and the docstring. A field of values may do without: its class describes it."""
    yield entry.name, entry.doc
    for member in entry.members:
        if member.doc or member.kind != "field":
            yield f"{entry.name}.{member.name}", member.doc


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_public_name_and_its_methods_have_docstrings_in_plain_words(entry: Entry) -> None:
    assert [name for name, doc in described(entry) if not doc] == [], "write a docstring: what it returns, its units, what it raises"
    if not (isinstance(entry.value, type) and issubclass(entry.value, WaltzError)):  # the page of errors says it, and has a test of its own
        assert [(name, found) for name, doc in described(entry) for found in words(re.sub(r"`[^`]*`", "`", doc))] == []


def test_every_public_name_is_on_a_page_once() -> None:
    for name in {package.name for page in PAGES for package in page.packages}:
        packages = [package for page in PAGES for package in page.packages if package.name == name]
        shown = [entry.name for package in packages for entry in entries(package)]
        assert sorted(shown) == sorted(import_module(name).__all__)


@dataclass
class _Sample:
    """A sample."""

    size: int = 3
    """In bytes."""
    bare: str = ""

    @property
    def half(self) -> float:
        return self.size / 2

    @classmethod
    async def read(cls, path: str, *, limit: int | None = None) -> _Sample:
        return cls()

    def plain(self) -> None: ...


def test_members_are_read_from_the_code_and_missing_docstrings_are_found() -> None:
    assert list(members(_Sample)) == [
        Member("size", "field", "size: int = 3", "In bytes."),
        Member("bare", "field", 'bare: str = ""', ""),
        Member("half", "property", "half: float", ""),
        Member("read", "method", "@classmethod\nasync def read(path: str, *, limit: int | None = None) -> _Sample: ...", ""),
        Member("plain", "method", "def plain() -> None: ...", ""),
    ]
    missing = [name for name, doc in described(Entry("_Sample", _Sample, "A sample.", tuple(members(_Sample)))) if not doc]
    assert missing == ["_Sample.half", "_Sample.read", "_Sample.plain"]


def test_methods_of_a_base_that_is_on_no_page_are_shown() -> None:
    assert {member.name for member in members(DeltaUpsert)} > {"prepare", "write"}


def test_a_long_signature_has_a_parameter_on_each_line() -> None:
    def long(first_of_the_parameters: int, second_of_the_parameters: str = "here", *, third_of_the_parameters: float) -> None: ...

    assert signature(long, "long") == (
        'def long(\n    first_of_the_parameters: int,\n    second_of_the_parameters: str = "here",\n    *,\n'
        "    third_of_the_parameters: float,\n) -> None: ..."
    )
