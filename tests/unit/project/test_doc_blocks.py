"""Every code block of the docs is run, or checked against what it is for. A block that cannot run here has a marker with the reason."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.exceptions import TyperException

from tools import reference
from tools.doc_blocks import Block, blocks, shell_commands
from tools.plain_english import pages
from tools.reference_commands import parse
from waltz_delta.pipelines.pipeline_file import check_pipeline_file
from waltz_delta.settings import DecodeSettings
from waltz_log.cli.profile_settings import Profiles
from waltz_log.client import Subscribers
from waltz_log.console.settings import ConsoleSettings
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import WaltzError
from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.server import ServerSettings
from waltz_log.testing import InMemoryCluster

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = [block for page in pages() for block in blocks(str(page), (ROOT / page).read_text())]

RUN_BY = {
    "README.md": ["tests/unit/project/test_readme_program.py", "tests/e2e/test_readme_session.py"],
    "docs/concepts/log_positions.md": ["tests/e2e/test_positions_spark.py"],
    "docs/guides/client.md": ["tests/unit/log/client/test_client_page.py"],
    "docs/guides/notebooks.md": ["tests/unit/log/client/test_notebook_page.py"],
    "docs/guides/outbox.md": ["tests/unit/log/outbox/test_outbox_page.py"],
    "docs/guides/recipes.md": ["tests/e2e/test_recipes.py"],
    "docs/guides/security.md": ["tests/integration/log/test_security_page.py"],
    "docs/guides/testing.md": ["tests/integration/log/test_testing_page.py"],
    "docs/guides/topics.md": ["tests/unit/project/test_doc_blocks.py"],
    "docs/guides/traces.md": ["tests/integration/log/test_traces.py"],
    "docs/internals/journal.md": ["tests/unit/project/test_doc_blocks.py"],
    "docs/reference/delta.md": ["tests/e2e/test_sink_docs.py"],
    "docs/reference/spark.md": ["tests/e2e/test_source_cluster.py", "tests/e2e/test_source_sql.py"],
    "docs/tutorial/first_table.md": ["tests/e2e/test_tutorial.py"],
}
"""The tests that run all blocks in Python and SQL of a page."""

NOT_RUN = {"docs/guides/deploy.md": 1, "docs/guides/monitoring.md": 1, "docs/guides/orchestration.md": 2, "docs/guides/spark_cluster.md": 1}
"""How many blocks of a page have a marker. Keep these few."""

LANGUAGES = {"python", "sql", "sh", "console", "yaml", "text", "mermaid", "dockerfile"}
SHELL = {
    "cd",
    "docker",
    "openssl",
    "echo",
    "exec",
    "export",
    "for",
    "do",
    "done",
    "install",
    "journalctl",
    "kill",
    "kubectl",
    "ln",
    "mkdir",
    "pip",
    "podman",
    "prometheus",
    "promtool",
    "python3",
    "pre-commit",
    "rm",
    "rsync",
    "source",
    "spark-sql",
    "systemctl",
    "systemd-sysusers",
    "tar",
    "tee",
    "wait",
    "sed",
    "cat",
}
"""Commands of which only the syntax is checked."""


def of(language: str) -> list[Any]:
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in BLOCKS if block.language == language and not block.not_run]


def test_every_block_has_a_language_and_few_have_a_marker() -> None:
    assert len(BLOCKS) > 200
    assert [(block.page, block.line, block.language) for block in BLOCKS if block.language not in LANGUAGES] == []
    marked = [block.page for block in BLOCKS if block.not_run]
    assert {page: marked.count(page) for page in marked} == NOT_RUN


def test_every_program_has_a_test_that_runs_it() -> None:
    generated = {str(page.relative_to(ROOT)) for page in reference.PAGES}
    programs = {block.page for block in BLOCKS if block.language in ("python", "sql") and not block.not_run}
    assert programs - (generated - set(RUN_BY)) == set(RUN_BY)
    for page, tests in RUN_BY.items():
        for test in tests:
            source = (ROOT / test).read_text()
            assert Path(page).name in source, f"{test} does not read {page}"


@pytest.mark.parametrize("block", of("python"))
def test_a_program_compiles(block: Block) -> None:
    compile(block.text, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", of("sh") + of("console"))
def test_the_commands_of_a_block_exist_and_accept_their_arguments(block: Block) -> None:
    if block.language == "sh":
        checked = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False, timeout=30)
        assert checked.returncode == 0, checked.stderr
    found = list(shell_commands(block))
    assert found
    for command in found:
        check_command(command)


def check_command(words: list[str]) -> None:
    """Fails for a command that does not exist here, or does not accept these words."""
    if words[0] in ("exec", "do"):
        words = words[1:]
    name, *arguments = words
    if name == "waltz":
        parse(arguments)
    elif name == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [each for each in arguments if "=" not in each and each not in targets] == []
    elif name == "spark-submit":
        (job,) = (each for each in arguments if each.endswith(".py"))
        source = "".join(path.read_text() for path in (ROOT / "platform/sink/waltz_delta/jobs").glob("*.py"))
        assert (ROOT / "jobs" / Path(job).name).is_file()
        own = [each for each in arguments[arguments.index(job) + 1 :] if each.startswith("--")]
        assert [option for option in own if f'"{option}"' not in source] == []
    elif name == "python" and arguments[0] == "-m":
        assert find_spec(arguments[1]) is not None
    else:
        assert name in SHELL or name in ("python", "ruff", "pytest") or "=" in name, f"unknown command {name!r}"


@pytest.mark.parametrize(
    "words",
    [
        "waltz cluster statuss c",
        "make nothing",
        "spark-submit jobs/nothing.py",
        "spark-submit jobs/ingest.py --clusters c",
        "python -m waltzing",
        "walts x",
    ],
)
def test_a_wrong_command_is_found(words: str) -> None:
    with pytest.raises((TyperException, AssertionError)):
        check_command(words.split())


@pytest.mark.parametrize("block", of("yaml"))
def test_settings_are_those_of_their_model(block: Block, tmp_path: Path) -> None:
    assert yaml_problems(block.text, tmp_path) == []


def yaml_problems(text: str, folder: Path) -> list[Any]:
    given = yaml.safe_load(text)
    if set(given) == {"decode"}:
        try:
            DecodeSettings(**given["decode"])
        except WaltzError as error:
            return [error]
        return []
    if "profiles" in given:
        try:
            Profiles(**given)
        except WaltzError as error:
            return [error]
        return []
    if "listen" in given or set(given) == {"tracing"}:
        try:
            ConsoleSettings(**given) if "cluster" in given else ServerSettings(**{"coordinator": "127.0.0.1:2181/waltz", **given})
        except WaltzError as error:
            return [error]
        return []
    path = folder / "pipeline.yaml"
    path.write_text(text)
    return list(check_pipeline_file(path, {"WALTZ_DATA": "/lake", "CLUSTER": "127.0.0.1:5101"})[1])


def test_a_wrong_setting_is_found(tmp_path: Path) -> None:
    assert yaml_problems("decode: {format: jsn}", tmp_path)
    assert yaml_problems("outputs: []", tmp_path)
    assert yaml_problems("profiles: {test: {clustr: 'a:1'}}", tmp_path)


def programs(page: str) -> list[str]:
    return [block.text for block in BLOCKS if block.page == page and block.language == "python"]


def test_the_program_of_the_journal_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("var/orders").mkdir(parents=True)
    (program,) = programs("docs/internals/journal.md")
    exec(compile(program, "journal.md", "exec"), {})
    left = Journal.open(FileSystemDisk(Path("var/orders")), JournalSettings(files_max=20))
    assert [(record.record_id, record.body) for record in left.loaded.records] == [(2, b"another")]
    left.close()


def test_the_programs_of_topics_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with InMemoryCluster(partitions=4) as cluster:
            coordinator = cluster.ensemble.session()
            for name, log_partitions, keyed in (("orders", (0, 1), True), ("clicks", (2, 3), False)):
                rules: dict[str, Any] = {
                    "type": "regular",
                    "partitions": 2,
                    "pool": range(4),
                    "log_partitions": log_partitions,
                    "now_ms": 1,
                    "keyed": keyed,
                }
                await change_catalogue(coordinator, partial(Catalogue.with_new, name=TopicName("shop", name), **rules))

            async def connect(address: str) -> Subscribers:
                return await Subscribers.connect_over(cluster.seeds, cluster.network)

            monkeypatch.setattr(Subscribers, "connect", connect)
            names: dict[str, Any] = {"client": await cluster.client()}
            for program in programs("docs/guides/topics.md"):
                await eval(compile(program, "topics.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            assert await names["orders"].high_water_marks() != await names["clicks"].high_water_marks()
            async with await connect("") as subscribers:
                assert [each.name for each in await subscribers.list()] == ["billing"]

    asyncio.run(main())
    assert len(programs("docs/guides/topics.md")) == 2
