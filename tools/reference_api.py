"""docs/reference/api_*.md, the pages of the API: the names in `__all__` of each package that applications import.

Signatures, fields and texts are read from the code. A test fails if a public class, method or field has no docstring.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from waltz_log.errors import WaltzError
from waltz_log.settings import Settings

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
COLUMNS = 120
SIGNATURE_COLUMNS = 110
OURS = ("waltz_log", "waltz_delta", "pyspark_waltz")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that applications import. `outside`: modules whose names another page describes."""

    name: str
    introduction: str
    outside: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    """The modules whose names the page describes; all modules if it is empty."""


@dataclass(frozen=True, slots=True)
class ApiPage:
    """A page and what it describes."""

    stem: str
    title: str
    packages: tuple[Package, ...]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.stem}.md"

    def text(self) -> str:
        parts = [f"# {self.title}\n", "Generated from the code by `make reference`. Types are written as in the code.\n"]
        for package in self.packages:
            parts += [f"## `{package.name}`\n", _wrapped(package.introduction) + "\n"]
            parts += [_described(entry) for entry in entries(package)]
        return "\n".join(parts)


PAGES = (
    ApiPage(
        "api_client",
        "API: the client",
        (
            Package(
                "waltz_log.client",
                "Appends, feeds, followers, transactions and topics. [The client](../guides/client.md) shows how to use them, "
                "[testing](../guides/testing.md) how to test with them. The names of the outbox are on [their page](api_outbox.md).",
                outside=("waltz_log.outbox",),
            ),
            Package(
                "waltz_log.client.sql",
                "Applications whose state is in an SQL database: extra `sql` ([client](../guides/client.md#an-sql-database-as-the-state)).",
            ),
        ),
    ),
    ApiPage(
        "api_outbox",
        "API: the outbox",
        (
            Package(
                "waltz_log.client",
                "The durable outbox of a service ([guide](../guides/outbox.md)). Import these names from `waltz_log.client`.",
                only=("waltz_log.outbox",),
            ),
        ),
    ),
    ApiPage(
        "api_journal",
        "API: the journal",
        (Package("waltz_log.journal", "Records on the local disk until they are deleted ([format and rules](../internals/journal.md))."),),
    ),
    ApiPage(
        "api_testing",
        "API: test clusters",
        (Package("waltz_log.testing", "Clusters for the tests of an application ([guide](../guides/testing.md)): extra `server`."),),
    ),
    ApiPage(
        "api_delta",
        "API: Spark and Delta",
        (
            Package(
                "waltz_delta",
                "The Delta sink as a library: extra `spark`. [Delta sink](delta.md) describes its rules, "
                "[log positions](../concepts/log_positions.md) how to read tables at a position.",
            ),
            Package("pyspark_waltz", 'The [Spark source](spark.md): extra `spark`. Queries name it as `format("waltz")`.'),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Member:
    """`shown`: a field or a property as `name: type`, or the signature of a method."""

    name: str
    kind: Literal["field", "property", "method"]
    shown: str
    doc: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A public name. `members`: those of the class itself and of its bases that are not public; none for errors and settings."""

    name: str
    value: Any
    doc: str
    members: tuple[Member, ...] = ()


def entries(package: Package) -> Iterator[Entry]:
    """The entries of a package, in the order of the names."""
    module = import_module(package.name)
    for name in module.__all__:
        value = getattr(module, name)
        where = getattr(value, "__module__", "")
        if where.startswith(package.only or "") and not (package.outside and where.startswith(package.outside)):
            yield _entry(module, name, value)


def _entry(module: ModuleType, name: str, value: Any) -> Entry:
    if inspect.isclass(value):
        apart = issubclass(value, WaltzError | Settings)
        return Entry(name, value, _doc(value), () if apart else tuple(members(value)))
    if inspect.isfunction(value):
        return Entry(name, value, _doc(value))
    return Entry(name, value, _constant_doc(module, name))


def _doc(value: Any) -> str:
    """The object's own docstring: not that of a base class, and not the one that a dataclass generates from its fields."""
    found = inspect.cleandoc(vars(value).get("__doc__") or value.__doc__ or "") if not inspect.isclass(value) else vars(value).get("__doc__") or ""
    return "" if inspect.isclass(value) and found.startswith(f"{value.__name__}(") else inspect.cleandoc(found)


def _constant_doc(module: ModuleType, name: str) -> str:
    """The string below the assignment of a constant, in the module that the package imports it from."""
    for statement in _tree(module).body:
        if isinstance(statement, ast.ImportFrom) and statement.module and name in {alias.name for alias in statement.names}:
            return _constant_doc(import_module(statement.module), name)
    return _docs_below(_tree(module).body).get(name, "")


def members(cls: type) -> Iterator[Member]:
    """Public fields, properties and methods of a class, and of its bases that are ours and on no page."""
    seen: set[str] = set()
    for each in cls.__mro__:
        if each is not cls and (not each.__module__.startswith(OURS) or _is_public(each)):
            continue
        for member in _own_members(each):
            if member.name not in seen:
                seen.add(member.name)
                yield member


def _is_public(cls: type) -> bool:
    """Whether some page describes the class by itself."""
    return any(cls.__name__ in import_module(package.name).__all__ for page in PAGES for package in page.packages)


def _own_members(cls: type) -> Iterator[Member]:
    body = _class_node(cls).body
    docs = _docs_below(body)
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            default = "" if statement.value is None or _is_call(statement.value) else f" = {_source(statement.value)}"
            if not name.startswith("_"):
                yield Member(name, "field", f"{name}: {_source(statement.annotation)}{default}", docs.get(name, ""))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and not statement.name.startswith("_"):
            yield _method(cls, statement.name)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if not name.startswith("_"):
                found = _method(cls, name)
                yield Member(name, "method", found.shown, docs.get(name) or found.doc)


def _method(cls: type, name: str) -> Member:
    value = inspect.getattr_static(cls, name)
    if isinstance(value, property):
        assert value.fget is not None
        node = _function_node(value.fget)
        return Member(name, "property", f"{name}: {_source(node.returns) if node.returns else 'Any'}", _doc(value.fget))
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    decorators = "@classmethod\n" if isinstance(value, classmethod) else "@staticmethod\n" if isinstance(value, staticmethod) else ""
    return Member(name, "method", decorators + signature(function, name, bound=not isinstance(value, staticmethod)), _doc(function))


def signature(function: Any, name: str, *, bound: bool = False) -> str:
    """The definition without its body; `bound`: without its first parameter."""
    node = _function_node(inspect.unwrap(function))
    arguments = node.args
    if bound:
        (arguments.posonlyargs or arguments.args).pop(0)
    if inspect.isasyncgenfunction(function):  # called without `await`
        kind = "def"
    else:
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) and inspect.iscoroutinefunction(function) else "def"
    returns = f" -> {_source(node.returns)}" if node.returns else ""
    parameters = list(_arguments(arguments))
    line = f"{kind} {name}({', '.join(parameters)}){returns}: ..."
    if len(line) <= SIGNATURE_COLUMNS:
        return line
    parts = "".join(f"    {each},\n" for each in parameters)
    return f"{kind} {name}(\n{parts}){returns}: ..."


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Each parameter with its type and default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        yield _source(argument) + (f" = {_source(default)}" if default is not None else "")
    if arguments.vararg is not None:
        yield f"*{_source(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _source(argument) + (f" = {_source(value)}" if value is not None else "")
    if arguments.kwarg is not None:
        yield f"**{_source(arguments.kwarg)}"


def _source(node: ast.AST) -> str:
    return re.sub(r"'([^'\"]*)'", r'"\1"', ast.unparse(node))


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _class_node(cls: type) -> ast.ClassDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return node


def _function_node(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


def _docs_below(body: list[ast.stmt]) -> dict[str, str]:
    """By name: the string that follows an assignment."""
    found = {}
    for statement, below in pairwise(body):
        target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[target.id] = inspect.cleandoc(str(below.value.value))
    return found


def _is_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call)


def _described(entry: Entry) -> str:
    parts = [f"### {entry.name}\n"]
    if inspect.isclass(entry.value) and issubclass(entry.value, WaltzError):
        return "\n".join([*parts, f"An error: [what happened, what to do, and its fields](errors.md#{entry.name.lower()}).\n"])
    if inspect.isfunction(entry.value):
        parts.append(_code(signature(entry.value, entry.name)))
    parts.append(_prose(entry.doc) + "\n")
    if inspect.isclass(entry.value):
        parts += _class_parts(entry)
    return "\n".join(parts)


def _class_parts(entry: Entry) -> Iterator[str]:
    cls = entry.value
    if issubclass(cls, Settings):
        yield "All of them, and how to choose them: [settings](settings.md).\n"
        return
    if "__init__" in vars(cls) and "made by" not in entry.doc.lower() and not hasattr(cls, "__dataclass_fields__"):
        yield _code(signature(vars(cls)["__init__"], "__init__", bound=True))
    attributes = [member for member in entry.members if member.kind != "method"]
    if attributes:
        yield "\n".join(_wrapped(f"- `{member.shown}`" + (f": {member.doc}" if member.doc else ""), "  ") for member in attributes) + "\n"
    for member in entry.members:
        if member.kind == "method":
            yield _code(member.shown)
            yield _prose(member.doc) + "\n"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _prose(doc: str) -> str:
    """A docstring as Markdown: paths of pages become links, paragraphs are wrapped again."""
    linked = re.sub(r"docs/([\w/]+\.md)", r"[docs/\1](../\1)", doc)
    return "\n\n".join(part if part.startswith(("- ", "|", "```")) else _wrapped(part) for part in linked.split("\n\n"))


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(" ".join(text.split()), COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
