"""How property tests choose their examples, which tests a run draws, and in which order they run.

`make test` and a plain `pytest` derive the examples from the test's own code, so that a test passes or fails the same way everywhere. `make explore`
loads the profile `explore`, which draws new examples at each run; what it finds goes into the test as an `@example`.
No example has a deadline: how long one needs says more about what else the machine does."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any  # Any: pytest-xdist has no types

import pytest
from hypothesis import settings

settings.register_profile("default", derandomize=True, print_blob=True, deadline=None)
settings.register_profile("explore", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("default")

FIRST_MODULES = Path(__file__).with_name("first_modules.txt")
"""The longest modules, so that none of them begins last, and those that mostly wait between those that compute: one a line."""

LISTED = Path(__file__).with_name("listed_skips.txt")
"""The tests that may be skipped where everything can run, each with its reason: `path::name  # reason`."""


DRAWN = Path(__file__).with_name("drawn_modules.txt")
"""The modules of which every run of `make test` draws a random share, because their tests need many seconds of Spark or of real processes: one
a line, with `whole` behind it where the tests share what needs the time. Those are drawn as modules. `x4` at the end: four times the share."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=float, default=1.0, help=f"how much of the modules in tests/{DRAWN.name} runs: 0.4 is two of five tests")
    parser.addoption("--draw", type=int, help="repeats the draw of a run that printed this number")
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
    if hasattr(config, "workerinput"):
        config.option.draw = config.workerinput["draw"]
    elif not 0 < config.option.share <= 1:
        raise pytest.UsageError(f"--share is {config.option.share:g}, not above 0 and at most 1")
    elif config.option.draw is None:
        config.option.draw = random.SystemRandom().randrange(1_000_000)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All workers draw alike."""
    node.workerinput["draw"] = node.config.option.draw


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.share < 1:
        terminalreporter.write_line(
            f"of the modules in tests/{DRAWN.name} a share ran; the same again with: --share={config.option.share:g} --draw={config.option.draw}"
        )


def left_out(
    tests: Sequence[str], whole_modules: Sequence[str], share: float, draw: int, times: Mapping[str, int] = MappingProxyType({})
) -> set[str]:
    """What a draw leaves out, of `tests` by their ids, and of whole modules. Of each module's tests a share runs, and at least one, whatever other
    modules are there. `times`: of modules of which more runs, how many times the share."""
    groups: dict[tuple[str, int], list[str]] = {}
    for test in sorted(tests):
        module = test.partition("::")[0]
        groups.setdefault((module, times.get(module, 1)), []).append(test)
    for module in sorted(whole_modules):
        groups.setdefault(("whole modules", times.get(module, 1)), []).append(module)
    absent: set[str] = set()
    for (name, more), group in groups.items():
        count = max(1, round(min(1.0, share * more) * len(group)))
        drawn = random.Random(f"{draw} {name} {more}").sample(group, count)
        absent |= {*group}.difference(drawn)
    return absent


def _draw(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = {path: words for path, *words in (line.split() for line in _lines(DRAWN))}
    times = {path: int(word[1:]) for path, words in listed.items() for word in words if word.startswith("x")}
    modules = {item.nodeid.partition("::")[0] for item in items}.intersection(listed)
    tests = [item.nodeid for item in items if "whole" not in listed.get(item.nodeid.partition("::")[0], ["whole"])]
    absent = left_out(tests, [each for each in modules if "whole" in listed[each]], config.option.share, config.option.draw, times)
    dropped = [item for item in items if absent & {item.nodeid, item.nodeid.partition("::")[0]}]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        rest = {*dropped}
        items[:] = [item for item in items if item not in rest]


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


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


@pytest.hookimpl(trylast=True)  # of what `-m` and `-k` leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.share < 1:
        _draw(config, items)
    if config.getoption("--first-modules"):
        modules = list(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))
        ranks = {module: rank for rank, module in enumerate(mixed(modules, _lines(FIRST_MODULES)))}
        items.sort(key=lambda item: ranks[item.nodeid.partition("::")[0]])


def pytest_collection_finish() -> None:
    """Excludes what was imported and collected from garbage collection. The collector would search all of it again and again, and find nothing: an
    eighth of the processor time of the unit tests. What a test makes mostly needs no collector either, so it runs less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
