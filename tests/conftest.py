"""How property tests choose their examples.

`make test` and a plain `pytest` derive the examples from the test's own code, so that a run passes or fails the same way everywhere. `make explore`
loads the profile `explore`, which draws new examples at each run; what it finds goes into the test as an `@example`.
No example has a deadline: how long one needs says more about what else the machine does."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", derandomize=True, print_blob=True, deadline=None)
settings.register_profile("explore", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("default")

FIRST_MODULES = Path(__file__).with_name("first_modules.txt")
"""The longest modules, so that none of them begins last, and those that mostly wait between those that compute: one a line."""

LISTED = Path(__file__).with_name("listed_skips.txt")
"""The tests that may be skipped where everything can run, each with its reason: `path::name  # reason`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-modules", action="store_true", help="begin with tests/first_modules.txt, and mix folders of tests")
    parser.addoption("--skips-listed", action="store_true", help="fail if a test is skipped that tests/listed_skips.txt does not name")


class _Skips:
    """Collects the skipped tests of all workers, and fails the run for those that are not listed."""

    def __init__(self) -> None:
        self.unlisted: list[str] = []
        lines = (line.partition("#")[0].strip() for line in LISTED.read_text().splitlines())
        self._listed = tuple(line for line in lines if line)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and report.nodeid.partition("[")[0] not in self._listed:
            self.unlisted.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.unlisted.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid in self.unlisted:
            terminalreporter.write_line(f"SKIPPED, and not in {LISTED.name}: {nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--skips-listed"):
        config.pluginmanager.register(_Skips())


def mixed(modules: Sequence[str], first: Sequence[str]) -> list[str]:
    """The order of modules that keeps the processors busy: `first`, then those with Spark, and then each other folder of tests spread evenly over the
    rest, because tests of real processes wait half of the time, and those in the simulator never. Within its folder each keeps its place."""
    known = set(modules)
    begin = [module for module in first if module in known]
    begin += [module for module in modules if module.startswith("tests/e2e/") and module not in first]
    folders: dict[str, list[str]] = {}
    for module in modules:
        if module not in begin:
            folders.setdefault("/".join(module.split("/")[:2]), []).append(module)
    places = {module: at / len(folder) for folder in folders.values() for at, module in enumerate(folder)}
    return begin + sorted(places, key=lambda module: places[module])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--first-modules"):
        first = [line for line in FIRST_MODULES.read_text().splitlines() if line and not line.startswith("#")]
        modules = list(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))
        ranks = {module: rank for rank, module in enumerate(mixed(modules, first))}
        items.sort(key=lambda item: ranks[item.nodeid.partition("::")[0]])


def pytest_collection_finish() -> None:
    """Excludes what was imported and collected from garbage collection. The collector would search all of it again and again, and find nothing: an
    eighth of the processor time of the unit tests. What a test makes mostly needs no collector either, so it runs less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
