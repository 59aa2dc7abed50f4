"""Finds words to avoid, unnamed subjects and long lines: `python tools/plain_english.py [FILE ...]` checks the docs or the files named.

The list follows the rules that CONTRIBUTING.md gives under "Write for a reader". In code blocks and code spans only the length of lines is checked.
Table rows may be long, because Markdown cannot break them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COLUMNS_MAX = 160

_DURATION = r"(?: (?:up to|about|at (?:least|most)|less than|more than|only|over|around|under))*"
_DURATION += r" (?:\d|an? (?:few|second|minute|hour|day|moment|while|tenth)|several|seconds|minutes|hours|two|three|ten|one|longer|time|twice|\{)"
_FIXED = r"(?: not| never)? (?:effect|place|precedence|part)\b"

AVOID: dict[str, str] = {
    r"\b(?:tells?|told|telling)\b": "report, notify, show, return: name what happens",
    r"\bmend(?:s|ed|ing)?\b": "repair",
    r"\b(?:rot|rots|rotted|rotten|rotting)\b": "corruption, corrupt",
    r"\bfellows?\b": "sibling, other replica",
    r"\busher\w*\b": "schedule",
    r"\b(?:look|looks|looked|looking)\b(?! like\b)": "read, inspect, scan, poll, search",
    rf"\b(?:take|takes|taken|took|taking)\b(?!{_DURATION}|{_FIXED})": "accept, acquire, use, need, read: name the action",
    r"\b(?:undertaken|surroundings|ballast)\b": "shielded task, dependencies, reserved space",
    r"\blasting\b": "durable, permanent",
    r"\blet(?:s|ting)? go\b": "release, close",
    r"\bbelongs? into\b": "use X to ...",
    r"\b(?:stands?|stood) in the\b": "is set in, is stored in",
    r"\b(?:anew|beforehand|thereof|therein|whereof|hitherto)\b": "again, from the start, in advance",
    r"\b(?:whoever|whosoever)\b": "name the subject: a client that ...",
    r"\b(?:somebody|nobody|everybody|anybody)\b": "name the subject: another client, no server, every reader",
    r"(?:^|(?<=[.:;] )|(?<=\| ))Who (?![^.?|]*\?)": "name the subject: A client that ...",
    r"; who ": "name the subject: a client that ...",
    r"\bfor ever\b": "permanently, never expires",
    r"so that\b[^.;]*\bso that\b": "two sentences",
}
_PATTERNS = [(re.compile(pattern, re.IGNORECASE if not pattern.startswith("(?:^") else 0), instead) for pattern, instead in AVOID.items()]


class Finding(NamedTuple):
    """One place to rewrite. `line` counts from 1."""

    line: int
    found: str
    instead: str


def words(text: str) -> Iterator[tuple[str, str]]:
    """What to avoid in a text, with what to write instead."""
    for pattern, instead in _PATTERNS:
        for match in pattern.finditer(text):
            yield match[0].strip(), instead


def page_findings(page: str) -> list[Finding]:
    """What to rewrite in a Markdown page."""
    findings, fence = [], ""
    for number, line in enumerate(page.splitlines(), start=1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark[1]
            continue
        if not line.lstrip().startswith("|") and len(line) > COLUMNS_MAX:
            findings.append(Finding(number, f"{len(line)} columns", f"at most {COLUMNS_MAX}"))
        if not fence:
            prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`|<!--.*?-->", "`", line))
            findings += [Finding(number, found, instead) for found, instead in words(prose)]
    return findings


def pages() -> list[Path]:
    """The Markdown that people read, relative to the project. The changelog records what was written when."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [path.relative_to(ROOT) for path in [*top, *sorted((ROOT / "docs").rglob("*.md"))]]


def _constants(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _messages(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Raise) and node.exc is not None:
        yield from _constants(node.exc)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in LOG_LEVELS and node.args:
            yield from _constants(node.args[0])
        for keyword in node.keywords:
            if keyword.arg in {"help", "description"}:
                yield from _constants(keyword.value)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any("command" in ast.unparse(each) for each in node.decorator_list):
        yield ast.get_docstring(node) or ""


LOG_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def source_findings(source: str) -> list[Finding]:
    """What to rewrite in the log events, error messages, command help and settings of a Python module."""
    return [
        Finding(getattr(node, "lineno", 0), f"{found!r} in {text[:80]!r}", instead)
        for node in ast.walk(ast.parse(source))
        for text in _messages(node)
        for found, instead in words(re.sub(r"`[^`]*`", "`", text))
    ]


def main(names: list[str]) -> int:
    """Prints what there is to rewrite; exit code 1 if there is anything."""
    paths = [Path(name) for name in names] or [ROOT / page for page in pages()]
    count = 0
    for path in paths:
        text = path.read_text()
        for finding in page_findings(text) if path.suffix == ".md" else source_findings(text):
            print(f"{path}:{finding.line}: {finding.found}: {finding.instead}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
