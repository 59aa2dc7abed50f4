"""`waltz config show`: each value with its origin, and no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from waltz_log.cli.main import run
from waltz_log.cli.support.config import COMPONENTS, settings_of
from waltz_log.cli.support.redaction import HIDDEN, redacted
from waltz_log.exit_codes import OK, USAGE
from waltz_log.settings import Settings


def _shown(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    return {each["setting"]: each for each in json.loads(capsys.readouterr().out)["settings"]}


def test_each_value_has_its_origin_and_the_environment_overrides_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("coordinator: here:1/x\nworkers: 2\nsession_timeout_s: 9\n")
    monkeypatch.setenv("WALTZ_SERVER_WORKERS", "4")
    monkeypatch.setenv("WALTZ_SERVER_PREFERRED_PARTITIONS", "1,2")
    assert run(["config", "show", "server", "--config", str(file), "--output", "json"]) == OK
    found = _shown(capsys)
    assert (found["coordinator"]["value"], found["coordinator"]["origin"], found["coordinator"]["default"]) == ("here:1/x", "file", None)
    assert (found["workers"]["value"], found["workers"]["origin"], found["workers"]["default"]) == (4, "WALTZ_SERVER_WORKERS", 1)
    assert found["preferred_partitions"]["value"] == [1, 2]
    assert found["session_timeout_s"]["value"] == 9.0
    assert found["listen"]["origin"] == "default"
    assert run(["config", "show", "server", "--config", str(file), "--changed"]) == OK
    shown = capsys.readouterr().out
    assert "listen" not in shown
    assert "WALTZ_SERVER_WORKERS" in shown


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_can_be_shown(component: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", component, "--output", "json"]) in (OK, USAGE)
    assert len(_shown(capsys)) > 2


def test_settings_that_do_not_start_are_shown_with_the_reason(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALTZ_SERVER_COORDINATOR", "here:1/x")
    monkeypatch.setenv("WALTZ_SERVER_WORKERS", "0")
    assert run(["config", "show", "server", "--changed"]) == USAGE
    assert "a server does not start with them: WALTZ_SERVER_WORKERS must be greater than or equal to 1" in capsys.readouterr().out
    monkeypatch.setenv("WALTZ_SERVER_WORKRS", "2")
    assert run(["config", "show", "server"]) == USAGE
    assert "WALTZ_SERVER_WORKRS: no such setting" in capsys.readouterr().err
    assert run(["config", "show", "sever"]) == USAGE
    assert "did you mean server" in capsys.readouterr().err


class Secretive(Settings):
    api_token: str = Field(default="", description="A secret.")
    address: str = Field(default="", description="An address.")
    headers: dict[str, str] = Field(default_factory=dict, description="Of requests.")


def test_secrets_are_hidden_at_any_depth() -> None:
    given = {"S_API_TOKEN": "s3cr3t", "S_ADDRESS": "http://ada:s3cr3t@here/x", "S_HEADERS": "{X-Secret: s3cr3t, other: open}"}
    shown, problem = settings_of(Secretive, None, prefix="S", environment=given)
    assert problem is None
    assert "s3cr3t" not in repr(shown)
    assert [each.value for each in shown] == [HIDDEN, f"http://ada:{HIDDEN}@here/x", {"X-Secret": HIDDEN, "other": "open"}]
    assert redacted("password", "") == "", "that none is set is no secret"


class Inner(Settings):
    issuer: str = Field(description="Not a secret.")
    keys: Path = Field(description="Not a secret.")
    password: str = Field(description="A secret.")


class Outer(Settings):
    tokens: Inner | None = Field(default=None, description="A block with a secret.")
    token: Path | None = Field(default=None, description="A file.")


def test_a_block_is_shown_without_its_secrets() -> None:
    given = {"S_TOKENS": "{issuer: https://here, keys: a/keys.json, password: s3cr3t}", "S_TOKEN": "a/token"}
    shown, problem = settings_of(Outer, None, prefix="S", environment=given)
    assert problem is None
    assert [each.value for each in shown] == [{"issuer": "https://here", "keys": "a/keys.json", "password": HIDDEN}, "a/token"]
