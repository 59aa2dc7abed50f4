"""What pages claim of commands, settings, events, ports and versions is what the code has. Each test is for a contradiction that readers found."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tools import reference, reference_settings
from tools.doc_blocks import blocks, shell_commands
from tools.log_events import MEANINGS
from tools.plain_english import pages
from tools.reference_commands import commands
from waltz_delta.base.log_store import scheme_of, unsafe_store
from waltz_log import exit_codes
from waltz_log.cli.addressed_commands import AddressedCommand
from waltz_log.errors import WaltzError

ROOT = Path(__file__).resolve().parents[3]
TEXTS = {str(page): (ROOT / page).read_text() for page in pages()}
WRITTEN = {page: text for page, text in TEXTS.items() if ROOT / page not in reference.PAGES and not page.startswith("docs/decisions/")}
"""The pages that persons write. Decisions say how things were."""

ADDRESSES = {"$CLUSTER": "CLUSTER", "CLUSTER": "CLUSTER", "<cluster>": "CLUSTER", "$COORDINATOR": "COORDINATOR", "COORDINATOR": "COORDINATOR"}
NEEDED = {name: command.params[0].metavar for name, command in commands() if isinstance(command, AddressedCommand)}
"""By the words of a command, the address that is its first argument."""


# ---- tables ----------------------------------------------------------------------------------------------------------------------------------------


def broken_rows(text: str) -> list[str]:
    """Rows with another number of cells than the head of their table, as with a `|` that is not escaped."""
    found = []
    for table in re.finditer(r"(?:^\|.*\n)+", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        head, *rows = table[0].splitlines()
        found += [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) != len(re.findall(r"(?<!\\)\|", head))]
    return found


@pytest.mark.parametrize("page", TEXTS)
def test_each_row_of_a_table_has_the_cells_of_its_head(page: str) -> None:
    assert broken_rows(TEXTS[page]) == []


def test_a_row_with_a_bar_in_code_is_found() -> None:
    assert broken_rows("| a | b |\n|---|---|\n| `x | head` | c |\n") == ["| `x | head` | c |"]


# ---- commands --------------------------------------------------------------------------------------------------------------------------------------


def typed(text: str) -> Iterator[list[str]]:
    """The words of commands in blocks, and in code within sentences."""
    for block in blocks("", text):
        if block.language in ("sh", "console"):
            yield from shell_commands(block)
    for code in re.findall(r"`(waltz [^`]+)`", text):
        yield code.split()


def wrong_addresses(text: str) -> list[str]:
    found = []
    for words in typed(text):
        name = next((" ".join(words[1:end]) for end in (4, 3, 2) if " ".join(words[1:end]) in NEEDED), None)
        if words[0] != "waltz" or name is None:
            continue
        given = [ADDRESSES[word] for word in words[1 + len(name.split()) :] if word in ADDRESSES]
        if given and given[0] != NEEDED[name]:
            found.append(" ".join(words))
    return found


@pytest.mark.parametrize("page", TEXTS)
def test_commands_name_the_address_that_they_need(page: str) -> None:
    assert wrong_addresses(TEXTS[page]) == []


@pytest.mark.parametrize(
    "command", ["waltz cluster status $CLUSTER", "waltz topic list COORDINATOR", "waltz cluster replica add CLUSTER 0 storage-0"]
)
def test_a_command_with_the_other_address_is_found(command: str) -> None:
    assert wrong_addresses(f"Run `{command}`.") == [command]


def test_no_command_of_clients_speaks_of_the_coordinator() -> None:
    found = [
        (name, parameter.name)
        for name, command in commands()
        if NEEDED.get(name) == "CLUSTER"
        for parameter in command.params
        if "coordinator" in (parameter.help or "")
    ]
    assert found == []


def grammar() -> dict[str, set[str]]:
    """By noun, the verbs that the decision lists; those without a noun under ``""``."""
    decision = next((ROOT / "docs" / "decisions").glob("0186-*.md")).read_text()
    found: dict[str, set[str]] = {}
    for noun, verbs in re.findall(r"^\| (`[^|]+`|none[^|]*) \| ([^|]+) \|", decision, re.MULTILINE):
        found.setdefault(noun.strip("`") if noun.startswith("`") else "", set()).update(re.findall(r"`([^`]+)`", verbs))
    return found


def ungrammatical(names: Iterable[str]) -> list[str]:
    """Commands whose noun or verb the decision does not list. A verb of `storage` may name the part that it concerns."""
    listed = grammar()
    found = []
    for name in names:
        noun, _, verb = name.rpartition(" ")
        known = listed.get(noun, set())
        if verb not in known and not (noun == "storage" and "-" in verb):
            found.append(name)
    return found


def test_each_command_is_a_noun_and_a_verb_of_the_decision_and_the_other_way_round() -> None:
    names = {name for name, _ in commands()}
    assert ungrammatical(sorted(names)) == []
    assert {f"{noun} {verb}".strip() for noun, verbs in grammar().items() for verb in verbs} - names == set()


@pytest.mark.parametrize("name", ["subscribers list", "topic remove", "frobnicate", "journal stats"])
def test_a_command_with_another_noun_or_verb_is_found(name: str) -> None:
    assert ungrammatical([name]) == [name]


def test_the_options_that_settings_name_exist() -> None:
    known = {option for _, command in commands() for parameter in command.params for option in (*parameter.opts, str(parameter.metavar))}
    named = [option for section in reference_settings.SECTIONS for option in section.options]
    assert len(named) > 10
    assert [option for option in named if option not in known] == []
    assert "--hide" in named


def test_no_page_or_message_installs_the_project_from_a_package_index() -> None:
    wanted = re.compile(r"pip install(?![^\n`]*\.whl)[^\n`]*\bwaltz[-_]platform")
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "platform").rglob("*.py")}
    assert [name for name, text in (WRITTEN | sources).items() if wanted.search(text)] == []
    assert wanted.search("pip install 'waltz-platform[server]'")
    assert not wanted.search('pip install "dist/waltz_platform-0.3.0.dev0-py3-none-any.whl[server]"')


# ---- settings, events, errors ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("quotas[].transactions_per_s", "transactions per second"),
        ("mounts_per_s", "mounts per second"),
        ("bytes_per_s", "bytes per second"),
        ("repair_bytes_per_s", "bytes per second"),
        ("segment_bytes", "bytes"),
        ("upkeep_s", "seconds"),
        ("linger_ms", "milliseconds"),
    ],
)
def test_a_setting_has_the_unit_of_its_name(name: str, unit: str) -> None:
    assert reference_settings.unit_of(name) == unit


def test_only_settings_of_bytes_are_in_bytes() -> None:
    paths = [path for section in reference_settings.SECTIONS for path, _ in reference_settings.fields_of(section.model)]
    assert [path for path in paths if "bytes" in reference_settings.unit_of(path) and "bytes" not in path.rsplit(".", 1)[-1]] == []


def shortened_events(text: str) -> list[str]:
    """Code that is the beginning of an event's name, and no event itself: a search for it in a log finds it, a match on it does not."""
    return [
        code
        for code in re.findall(r"`([a-z][a-z0-9 ,]+ [a-z0-9 ,]+)`", text)
        if code not in MEANINGS and any(re.match(rf"{re.escape(code)}[ ,]", event) for event in MEANINGS)
    ]


@pytest.mark.parametrize("page", TEXTS)
def test_pages_name_log_events_in_full(page: str) -> None:
    assert shortened_events(TEXTS[page]) == []


def test_a_shortened_event_is_found() -> None:
    assert shortened_events("The node logs `new certificate refused`.") == ["new certificate refused"]


SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "platform").rglob("*.py")))
MESSAGES = re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", SOURCES))
"""The source with the parts of a message joined."""


def unknown_messages(text: str) -> list[str]:
    """Code that reads like a message, of which the source has no such text. Its first two words may be a name that a format puts before it."""
    found = []
    for code in re.findall(r"`([a-z][a-z ,']+(?: [a-z,']+){3,})`", text):
        words = code.split()
        typed = words[0] in ("waltz", "make", "python", "pip", "ssh", "kubectl", "systemctl", "git", "export", "source")
        if not typed and code not in MEANINGS and not any(" ".join(words[left:]) in MESSAGES for left in (0, 1, 2)):
            found.append(code)
    return found


@pytest.mark.parametrize("page", WRITTEN)
def test_pages_quote_messages_as_they_are(page: str) -> None:
    assert unknown_messages(WRITTEN[page]) == []


def test_a_message_that_was_reworded_is_found() -> None:
    assert unknown_messages("It says `the partition would have no majority that can take appends`.") != []
    assert unknown_messages("It says `the partition would have no majority that accepts appends`.") == []


def codes(text: str) -> set[int]:
    """The exit codes of the tables with such a column."""
    tables = re.findall(r"^\| (?:exit )?code \| meaning \|.*\n((?:\|.*\n)+)", text, re.MULTILINE | re.IGNORECASE)
    return {int(code) for table in tables for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def errors_below(kind: type[WaltzError]) -> Iterator[type[WaltzError]]:
    for each in kind.__subclasses__():
        yield each
        yield from errors_below(each)


def test_each_exit_code_is_on_the_page_of_errors_and_those_of_jobs_on_that_of_jobs() -> None:
    import waltz_delta.errors  # noqa: F401

    declared = {each.exit_code for each in errors_below(WaltzError)}
    assert declared <= codes(TEXTS["docs/reference/errors.md"]) == codes(exit_codes.__doc__ or "")
    of_jobs = {each.exit_code for each in errors_below(WaltzError) if each.__module__.startswith("waltz_delta")}
    assert len(of_jobs) > 3
    assert of_jobs | {exit_codes.OK, exit_codes.REFUSED, exit_codes.MACHINE, exit_codes.LACKING} <= codes(TEXTS["docs/guides/pipelines.md"])


# ---- object stores ---------------------------------------------------------------------------------------------------------------------------------


def refused_tables(text: str) -> list[str]:
    """Tables of commands that a job refuses, because the session of the command has no log store for them."""
    found = []
    for words in (words for block in blocks("", text) if block.language in ("sh", "console") for words in shell_commands(block)):
        if "spark-submit" not in words[:1]:
            continue
        set_to = dict(word.split("=", 1) for option, word in pairwise(words) if option == "--conf" and "=" in word)
        tables = [word for option, word in pairwise(words) if option == "--table" and "://" in word]
        found += [table for table in tables if unsafe_store(scheme_of(table), set_to.get)]
    return found


@pytest.mark.parametrize("page", WRITTEN)
def test_no_command_fills_a_table_that_the_job_refuses(page: str) -> None:
    assert refused_tables(WRITTEN[page]) == []


def test_a_table_on_s3_without_a_log_store_is_found() -> None:
    command = "spark-submit --conf spark.executor.instances=2 ingest.py --table s3a://BUCKET/tables/orders"
    assert refused_tables(f"```sh\n{command}\n```\n") == ["s3a://BUCKET/tables/orders"]


# ---- files -----------------------------------------------------------------------------------------------------------------------------------------


TESTS = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def unknown_tests(text: str) -> list[str]:
    return [name for name in re.findall(r"\btest_\w+\.py\b", text) if name not in TESTS]


def untested_threats(page: str) -> list[str]:
    """Rows of what is defended that name neither a module of tests nor a target of make that exists."""
    _, defended = page.split("\n## What is defended\n")
    rows = re.findall(r"^\| (.+?) \| .* \| (.+?) \|$", defended.split("\n## ")[0], re.MULTILINE)
    assert rows[0] == ("Threat", "Tested by")
    named = TESTS | {f"make {target}" for target in TARGETS}
    return [threat for threat, tested in rows[1:] if not named & set(re.findall(r"`([^`]+)`", tested))]


@pytest.mark.parametrize("page", TEXTS)
def test_the_modules_of_tests_that_pages_name_exist(page: str) -> None:
    assert unknown_tests(TEXTS[page]) == []


def test_each_threat_that_is_defended_names_its_test() -> None:
    assert untested_threats(TEXTS["docs/concepts/threat_model.md"]) == []


def test_a_module_of_tests_that_was_renamed_and_a_threat_without_a_test_are_found() -> None:
    page = "\n## What is defended\n\n| Threat | Defense | Tested by |\n|---|---|---|\n| A | b | %s |\n| B | c | `test_rules.py` |\n\n## Rest\n"
    assert unknown_tests("Checked by `tests/unit/test_repair.py` and `test_rules.py`.") == ["test_repair.py"]
    for tested in ("a matrix", "the same matrix", "`test_repair.py`", "`make nothing`"):
        assert untested_threats(page % tested) == ["A"]
    for tested in ("a matrix: `test_rules.py`", "`make fuzz`: each framed parser"):
        assert untested_threats(page % tested) == []


def test_the_ports_on_the_page_of_monitoring_are_those_of_the_files() -> None:
    (image,) = set(re.findall(r'_HTTP="\{host: [\d.]+, port: (\d+), probe_port: (\d+)\}"', (ROOT / "conf/deploy/Containerfile").read_text()))
    systemd = [
        re.findall(r"_HTTP=\{host: [\d.]+, port: (\d+)\}", (ROOT / f"conf/deploy/systemd/{kind}.env").read_text())[0]
        for kind in ("storage", "server")
    ]
    page = TEXTS["docs/guides/monitoring.md"]
    assert f"| the image, Compose, Kubernetes | {image[0]}, {image[1]} | {image[0]}, {image[1]} |" in page
    assert f"`conf/monitoring/prometheus.yml` | {systemd[0]}, none | {systemd[1]}, none |" in page
    scraped = (ROOT / "conf/monitoring/prometheus.yml").read_text()
    assert all(f"127.0.0.1:{port}" in scraped for port in systemd)


def test_folders_of_releases_have_the_version_of_the_tree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    named = {(page, found) for page, text in WRITTEN.items() for found in re.findall(r"/opt/waltz-(\d[\w.]*\w)", text)}
    assert len(named) > 1
    assert {(page, found) for page, found in named if found != version} == set()
