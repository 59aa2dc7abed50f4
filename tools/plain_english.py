"""Finds words to avoid, unnamed subjects and long lines: `python tools/plain_english.py [FILE ...]` checks the docs or the files named.
`python tools/plain_english.py --code FOLDER|FILE ...` lists the words to avoid in docstrings, comments and names.
`python tools/plain_english.py --lower` writes the counts of the folders that have fewer of them now. A count never rises.

The list follows the rules that CONTRIBUTING.md gives under "Write for a reader". In code blocks and code spans only the length of lines is checked.
Rows of tables, which Markdown cannot break, may be longer on generated pages and in generated tables only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COLUMNS_MAX = 160
COUNTS = ROOT / "tests/unit/project/words_to_avoid_in_code.txt"
"""Lines of a count and a folder: the words to avoid in its docstrings, comments and names."""
GENERATED = re.compile(r"^Generated from ", re.MULTILINE)
FIGURES = re.compile(r"<!-- figures: \w+ -->(.*?)<!-- end -->", re.DOTALL)
"""Tables that `tools.reference_figures` writes into pages written by hand."""
PACKAGES = (
    "platform/log/waltz_log",
    "platform/sink/waltz_delta",
    "platform/spark_source/pyspark_waltz",
    "benchmarks",
    "demo",
    "jobs",
    "tests",
    "tools",
    "verification",
)
"""Where docstrings, comments and names are checked. Generated modules are left out."""

_DURATION = r"(?: (?:up to|about|at (?:least|most)|less than|more than|only|over|around|under))*"
_DURATION += r" (?:\d|an? (?:few|second|minute|hour|day|moment|while|tenth)|several|seconds|minutes|hours|two|three|ten|one|longer|time|twice"
_DURATION += r"|m?s\b|\{)"
"""A name such as `took_ms` gives a duration too."""
_FIXED = r"(?: not| never)? (?:effect|place|precedence|part)\b"

AVOID: dict[str, str] = {
    r"\b(?:tells?|told|telling)\b": "report, notify, show, return: name what happens",
    r"\bmend(?:s|ed|ing)?\b": "repair",
    r"\b(?:rot|rots|rotted|rotten|rotting)\b": "corruption, corrupt",
    r"\bfellows?\b": "sibling, other replica",
    r"\busher\w*\b": "schedule",
    r"\b(?:look|looks|looked|looking)\b(?! (?:like|up)\b)": "read, inspect, scan, poll, search",
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
WRONG_VERBS = re.compile(r"^(?:wants|wanted) |(?<!there )\bis no (?!longer)")
"""In error messages: a setting wants nothing, it must be something, and what is no such thing is not such a thing."""
SENTENCES = ROOT / "tests/unit/project/sentences_to_avoid.txt"
"""Sentences that readers had to read twice, one a line. Each was replaced and does not return."""
SHOWN = ("README.md", "SECURITY.md", "conf", "demo", "docs", "examples", "jobs", "platform")
"""Where those sentences are searched."""
_PATTERNS = [(re.compile(pattern, re.IGNORECASE if not pattern.startswith("(?:^") else 0), instead) for pattern, instead in AVOID.items()]


class Finding(NamedTuple):
    """One place to rewrite. `line` counts from 1."""

    line: int
    found: str
    instead: str


@cache
def words(text: str) -> tuple[tuple[str, str], ...]:
    """What to avoid in a text, with what to write instead. Most names occur in many places, so what was found once is kept."""
    return tuple((match[0].strip(), instead) for pattern, instead in _PATTERNS for match in pattern.finditer(text))


def page_findings(page: str) -> list[Finding]:
    """What to rewrite in a Markdown page."""
    findings, fence = [], ""
    generated = GENERATED.search(page) is not None
    tables = {line for block in FIGURES.findall(page) for line in block.splitlines()}
    for number, line in enumerate(page.splitlines(), start=1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark[1]
            continue
        if len(line) > COLUMNS_MAX and not (line.lstrip().startswith("|") and (generated or line in tables)):
            findings.append(Finding(number, f"{len(line)} columns", f"at most {COLUMNS_MAX}"))
        if not fence:
            prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`|<!--.*?-->", "`", line))
            findings += [Finding(number, found, instead) for found, instead in words(prose)]
    return findings


def pages() -> list[Path]:
    """The Markdown that people read, relative to the project. The changelog records what was written when."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [path.relative_to(ROOT) for path in [*top, *sorted((ROOT / "docs").rglob("*.md"))]]


_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""Of the syntax tree: two thirds of its nodes, of which no check needs one by itself."""


def _nodes(source: str) -> list[ast.AST]:
    """The syntax tree of a module as `ast.walk` orders it, without leaves."""
    nodes: list[ast.AST] = [ast.parse(source)]
    for node in nodes:  # grows
        for field in node._fields:
            value = getattr(node, field)
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST) and not isinstance(each, _LEAVES)]
            elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
                nodes.append(value)
    return nodes


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
        for node in _nodes(source)
        for text in _messages(node)
        for found, instead in [*words(re.sub(r"`[^`]*`", "`", text)), *((each[0], "must be, is not") for each in WRONG_VERBS.finditer(text))]
    ]


def sentences_found(root: Path = ROOT) -> list[str]:
    """File and line of each of `SENTENCES` that is back."""
    avoided = SENTENCES.read_text().splitlines()
    found = []
    for top in (root / name for name in SHOWN):
        for path in [top] if top.is_file() else sorted(each for each in top.rglob("*") if each.suffix in {".py", ".html", ".js", ".md", ".proto"}):
            text = path.read_text()
            found += [f"{path.relative_to(root)}:{text[: text.index(each)].count(chr(10)) + 1}: {each}" for each in avoided if each in text]
    return found


def _docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


_COMMENT = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|'
    r"'''(?:[^'\\]|\\.|'(?!''))*'''|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'(?:[^'\\\n]|\\.)*'|"
    r"(#[^\n]*)",
    re.DOTALL,
)
"""A string, or a comment in the only group. Python's own tokenizer needs ten times as long for the sources of the project."""


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments on consecutive lines are one text."""
    first, last, text = 0, -1, ""
    line, counted = 1, 0
    for found in _COMMENT.finditer(source):
        if found[1] is None:
            continue
        line, counted = line + source.count("\n", counted, found.start()), found.start()
        if line != last + 1:
            if text:
                yield first, text
            first, text = line, ""
        last, text = line, f"{text} {found[1].lstrip('# ')}"
    if text:
        yield first, text


def _names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """The functions, classes, parameters and fields that a module defines, as separate words: `LockTable` is "lock table"."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        yield node.lineno, _spelled(name)


@cache
def _spelled(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").strip().lower()


def code_findings(source: str) -> list[Finding]:
    """What to rewrite in the docstrings, comments and names of a Python module. Code spans are not checked."""
    nodes = _nodes(source)
    return [
        Finding(line, f"{found!r} in {text.strip()[:80]!r}", instead)
        for line, raw in [*_docstrings(nodes), *_comments(source), *_names(nodes)]
        for text in [" ".join(re.sub(r"`[^`]*`", "`", raw).split())]
        for found, instead in words(text)
    ]


def docstrings_without_a_subject(source: str) -> list[int]:
    """The lines of docstrings that begin with "Of": they leave it to the reader to find what of it."""
    return [line for line, text in _docstrings(_nodes(source)) if text.startswith("Of ")]


def modules(folder: Path) -> list[Path]:
    """The Python files under a folder, without generated ones."""
    return sorted(path for path in folder.rglob("*.py") if not path.name.endswith("_pb2.py"))


def counts(root: Path = ROOT) -> dict[str, int]:
    """The number of findings in each folder of a package. The modules beside those folders count for the package."""
    found: dict[str, int] = {}
    for package in PACKAGES:
        for path in modules(root / package):
            folder = Path(package, *path.relative_to(root / package).parts[:-1][:1]).as_posix()
            found[folder] = found.get(folder, 0) + len(code_findings(path.read_text()))
    return dict(sorted(found.items()))


def committed_counts(text: str) -> dict[str, int]:
    """The counts in the text of `COUNTS`."""
    return {folder: int(count) for count, folder in (line.split() for line in text.splitlines())}


def count_problems(committed: dict[str, int], now: dict[str, int]) -> list[str]:
    """Why the committed counts differ from what there is now. A folder that is not listed may have none."""
    problems = []
    for folder in sorted({*committed, *now}):
        was, found = committed.get(folder, 0), now.get(folder, 0)
        counted = f"{folder}: {found} words to avoid, {was} are committed"
        if found > was:
            problems.append(f"{counted}; list them: python tools/plain_english.py --code {folder}")
        if found < was:
            problems.append(f"{counted}; lower the count: python tools/plain_english.py --lower")
    return problems


def lower(path: Path, now: dict[str, int]) -> None:
    """Writes the counts that fell. A count that rose keeps its number."""
    kept = {folder: min(count, now.get(folder, 0)) for folder, count in committed_counts(path.read_text()).items()}
    path.write_text("".join(f"{count:4} {folder}\n" for folder, count in sorted(kept.items()) if count))


def main(names: list[str]) -> int:
    """Prints what there is to rewrite; exit code 1 if there is anything."""
    if names == ["--lower"]:
        lower(COUNTS, counts())
        return 0
    if names[:1] == ["--code"]:
        sources = [path for name in map(Path, names[1:]) for path in ([name] if name.is_file() else modules(name))]
        found = [(path, finding) for path in sources for finding in code_findings(path.read_text())]
        for path, finding in found:
            print(f"{path}:{finding.line}: {finding.found}: {finding.instead}")
        return 1 if found else 0
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
