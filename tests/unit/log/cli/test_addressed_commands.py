"""The address of the cluster may be left out of each command that needs one: an option, a variable or a profile gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from tools.reference_commands import commands
from waltz_log.cli.addressed_commands import AddressedCommand
from waltz_log.cli.examples import EXAMPLES
from waltz_log.cli.main import root_command, run
from waltz_log.exit_codes import USAGE

CLUSTER, COORDINATOR = "log1:5101,log2:5101", "zk1:2181/waltz/main"
NEED = {"$CLUSTER": CLUSTER, "$COORDINATOR": COORDINATOR}
NO_ARGUMENT = {"console"}
"""Its settings can name the cluster, so it finds the address by itself."""


@pytest.fixture(autouse=True)
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing names a cluster, and the path of a file of profiles that is not there."""
    for name in ("WALTZ_CLUSTER", "WALTZ_COORDINATOR", "WALTZ_PROFILE", "WALTZ_PROFILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "waltz").mkdir()
    return tmp_path / "waltz" / "profiles.yaml"


def parsed(*words: str) -> dict[str, Any]:
    """The arguments that the command gets."""
    command: Any = root_command()
    context = typer.Context(command)
    while isinstance(command, typer.core.TyperGroup):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return dict(command.make_context("x", list(words)).params)


def address_of(*words: str) -> str:
    found = parsed(*words)
    return str(found.get("cluster") or found.get("coordinator"))


def test_each_command_with_an_address_can_leave_it_out() -> None:
    """A new command that needs a cluster without this fails here."""
    names = [name for name, command in commands() if any(each.name in ("cluster", "coordinator") for each in command.params)]
    nodes = {name for name, command in commands() if not isinstance(command, AddressedCommand)}
    assert set(names) & nodes <= {"server", "storage", "doctor"} | NO_ARGUMENT


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if any(each in example for each in NEED) and name not in NO_ARGUMENT])
def test_the_example_means_the_same_without_its_address(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all ways that give one, for each command."""
    import shlex

    words = shlex.split(EXAMPLES[name].removeprefix("waltz ").replace("$CLUSTER", CLUSTER).replace("$COORDINATOR", COORDINATOR))
    address = CLUSTER if CLUSTER in words else COORDINATOR
    kind = "cluster" if address == CLUSTER else "coordinator"
    wanted = parsed(*words)
    assert wanted[kind] == address
    words.remove(address)
    assert parsed(*words, "-C", address) == wanted
    assert parsed(*words, f"--{kind}", address) == wanted
    monkeypatch.setenv(f"WALTZ_{kind.upper()}", address)
    assert parsed(*words) == wanted
    assert run([*name.split(), "--help"]) == 0


@pytest.mark.parametrize("words", [["topic", "list"], ["topic", "describe", "a/b"], ["append", "text"], ["access", "revoke", "spiffe://a/b"]])
def test_a_missing_address_is_one_sentence_with_each_way_to_give_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == USAGE
    kind = "coordinator" if words[0] == "access" else "cluster"
    message = capsys.readouterr().err
    start = f"waltz: the {kind} is missing: give --{kind} or --profile, set WALTZ_{kind.upper()}, or write a profile to "
    assert message.startswith(start)
    assert message.endswith("waltz/profiles.yaml\n")


@pytest.mark.parametrize(
    ("words", "address"),
    [
        (["append", "text"], "env:1"),
        (["append", "log1:5101"], "log1:5101"),
        (["append", "log1:5101", "text"], "log1:5101"),
        (["append", "no address", "text"], "no address"),
        (["append", "-C", "log9:1", "log1:5101"], "log9:1"),
        (["topic", "describe", "shop/orders"], "env:1"),
        (["topic", "describe", "log1:5101", "shop/orders"], "log1:5101"),
        (["topic", "list"], "env:1"),
        (["topic", "list", "[::1]:5101"], "[::1]:5101"),
        (["topic", "list", "--timeout", "3"], "env:1"),
        (["topic", "list", "nonsense"], "nonsense"),
        (["drain", "10.0.0.5:5101"], "zk:1/env"),
        (["drain", "zk1:2181/waltz/main", "10.0.0.5:5101"], "zk1:2181/waltz/main"),
        (["access", "grant", "spiffe://waltz/application/orders", "append", "shop/returns:0-3", "log:5"], "zk:1/env"),
        (["access", "grant", "zk1:2181/x", "spiffe://waltz/application/orders", "append", "log:5"], "zk1:2181/x"),
        (["access", "revoke", "spiffe://waltz/application/orders"], "zk:1/env"),
    ],
)
def test_what_stands_first_is_the_address_only_if_it_looks_like_one_or_nothing_else_is_left(
    words: list[str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALTZ_CLUSTER", "env:1")
    monkeypatch.setenv("WALTZ_COORDINATOR", "zk:1/env")
    assert address_of(*words) == address


# ---- profiles --------------------------------------------------------------------------------------------------------------------------------------

FILE = "default: test\nprofiles:\n  test: {cluster: 'test:1', coordinator: 'zk:1/test'}\n  live: {cluster: 'live:1'}\n"


def test_a_variable_overrides_the_default_profile_and_an_option_both(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles.write_text(FILE)
    assert address_of("topic", "list") == "test:1"
    assert address_of("access", "list") == "zk:1/test"
    monkeypatch.setenv("WALTZ_PROFILE", "live")
    assert address_of("topic", "list") == "live:1"
    monkeypatch.setenv("WALTZ_CLUSTER", "env:1")
    assert address_of("topic", "list") == "env:1"
    assert address_of("topic", "list", "--profile", "test") == "test:1"
    assert address_of("topic", "list", "-C", "option:1") == "option:1"
    assert address_of("topic", "list", "word:1") == "word:1"


@pytest.mark.parametrize(
    ("text", "words", "reported"),
    [
        (FILE, ["--profile", "lvie"], "lvie: no such profile in {path} (did you mean live?)"),
        (FILE, ["--profile", "test", "-C", "a:1"], "--profile cannot be combined with --cluster"),
        ("default: live\n", [], "live: no such profile, though `default` names it"),
        ("profils: {}\n", [], "profils: no such setting (did you mean profiles?)"),
        ("profiles: {test: {clustr: 'a:1'}}\n", [], "profiles.test.clustr: extra inputs are not permitted, not 'a:1'"),
        ("profiles: {test: {cluster: 'zk:1/x'}}\n", [], "profiles.test: cluster is the address of a coordinator: 'zk:1/x', clients need log servers"),
        ("#" * 300_000, [], "{path} cannot be read: it has 300000 bytes, more than the 262144 that a settings may have"),
    ],
)
def test_a_file_of_profiles_that_is_wrong_is_refused(
    text: str, words: list[str], reported: str, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiles.write_text(text)
    assert run(["topic", "list", *words]) == USAGE
    assert capsys.readouterr().err.startswith("waltz: " + reported.format(path=profiles))


def test_a_profile_without_the_address_that_the_command_needs_is_refused(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiles.write_text(FILE)
    assert run(["access", "list", "--profile", "live"]) == USAGE
    assert capsys.readouterr().err == f"waltz: profile live has no coordinator, in {profiles}\n"


def test_the_file_that_a_variable_names_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WALTZ_PROFILES", str(tmp_path / "none.yaml"))
    assert run(["topic", "list"]) == USAGE
    assert "none.yaml cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_file_of_profiles_is_not_read_where_the_address_is_given(profiles: Path) -> None:
    profiles.write_text("not: [yaml")
    assert address_of("topic", "list", "log1:5101") == "log1:5101"


def test_the_console_finds_the_cluster_in_the_same_places(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from waltz_log.console import serving

    assert run(["console"]) == USAGE
    assert "the cluster is missing" in capsys.readouterr().err
    served: list[Any] = []
    monkeypatch.setattr(serving, "run", served.append)
    monkeypatch.setenv("WALTZ_CLUSTER", "env:1")
    assert run(["console"]) == 0
    assert served[0].cluster == "env:1"
    monkeypatch.setenv("WALTZ_CONSOLE_CLUSTER", "own:1")
    assert run(["console"]) == 0
    assert served[1].cluster == "own:1"
