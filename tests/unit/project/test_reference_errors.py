"""The reference page of errors: it is complete, and its exit codes are those that the rest of the docs name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools import reference_errors
from tools.plain_english import words
from waltz_log import exit_codes
from waltz_log.errors import WaltzError

ROOT = Path(__file__).resolve().parents[3]
CLASSES = [cls for section in reference_errors.SECTIONS for cls in reference_errors.classes(section)]
CODES = {getattr(exit_codes, name) for name in exit_codes.__all__}


def test_every_error_class_of_the_product_is_on_the_page() -> None:
    bases: dict[str, set[str]] = {}
    for path in (ROOT / "platform").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(ast.unparse(base).split(".")[-1] for base in node.bases)
    defined, found = {"WaltzError"}, set[str]()
    while defined != found:
        found = set(defined)
        defined |= {name for name, of in bases.items() if of & found}
    assert defined == {"WaltzError", *(cls.__name__ for cls in CLASSES)}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_says_what_to_do_in_plain_words_and_has_an_exit_code(cls: type[WaltzError]) -> None:
    happened, remedy = reference_errors.what_to_do(cls)
    assert happened.endswith(".")
    assert remedy.endswith(".")
    assert not list(words(reference_errors.message(cls)))
    declaring = [base for base in cls.__mro__ if "exit_code" in vars(base)]
    assert declaring[0] is not WaltzError, "no exit code was chosen"
    assert cls.exit_code in CODES - {exit_codes.OK, exit_codes.CLOSED_PIPE}


def test_docs_name_only_exit_codes_that_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        (str(page.relative_to(ROOT)), int(code)) for page in pages for code in re.findall(r"\bexit codes? (\d+)", page.read_text(), re.IGNORECASE)
    }
    (pipelines,) = (ROOT / "docs").rglob("pipelines.md")
    table = re.search(r"^\| exit code \|.*\n\|[-|]+\n((?:\| \d+ \|.*\n)+)", pipelines.read_text(), re.MULTILINE)
    assert table is not None
    named |= {(pipelines.name, int(code)) for code in re.findall(r"^\| (\d+) \|", table[1], re.MULTILINE)}
    assert len(named) > 8
    assert {(page, code) for page, code in named if code not in CODES} == set()
