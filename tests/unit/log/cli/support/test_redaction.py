"""Secrets inside other values: addresses, commands, headers, query strings, and tokens of known forms."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from waltz_log.cli.support.config import show
from waltz_log.cli.support.redaction import HIDDEN, redacted, redacted_text

SECRET = "s3cr3t/p@ss"
PLAIN = "s3cr3tpass"
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJqb2JzL25pZ2h0bHkifQ.c2lnbmF0dXJl"

TEXTS = {
    "password of an address": f"https://ada:{SECRET}@example.com/x",
    "password without a user": f"redis://:{PLAIN}@cache:6379/0",
    "token of an address": f"https://{PLAIN}{PLAIN}@example.com/x",
    "query": f"https://example.com/hook?code={PLAIN}&x=1",
    "signed address": f"https://bucket.example.com/key?X-Amz-Signature={PLAIN}&sig={PLAIN}",
    "header": f"Authorization: Bearer {PLAIN}",
    "header of basic authentication": f"authorization: Basic {PLAIN}==",
    "header of a key": f"X-Api-Key: {PLAIN}",
    "cookie": f"Cookie: session={PLAIN}; other={PLAIN}",
    "header in a command": f"curl -H 'Authorization: token {PLAIN}' https://example.com",
    "user in a command": f"curl -u ada:{PLAIN} https://example.com",
    "option": f"replay --password {PLAIN} --pipeline x",
    "option with a sign": f"replay --db-password={PLAIN} --pipeline x",
    "quoted option": f'replay --token "{PLAIN} {PLAIN}" x',
    "assignment": f"AWS_SECRET_ACCESS_KEY={PLAIN} replay",
    "connection string": f"Endpoint=sb://x.example.com/;SharedAccessKey={PLAIN};EntityPath=y",
    "data source name": f"host=db user=ada password={PLAIN} dbname=x",
    "block of JSON": json.dumps({"issuer": "x", "password": PLAIN}),
    "block of YAML": f"{{issuer: x, client_secret: {PLAIN}}}",
    "JSON in JSON": json.dumps(json.dumps({"password": PLAIN})),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_secret_inside_a_text_is_hidden(text: str) -> None:
    for shown in (redacted_text(text), redacted("command", text), str(redacted("", {"nested": [text]}))):
        assert HIDDEN in shown
        assert SECRET not in shown
        assert PLAIN not in shown
        assert "p@ss" not in shown


@pytest.mark.parametrize(
    "text", [JWT, "AKIAIOSFODNN7EXAMPLE", f"ghp_{'a1' * 18}", f"glpat-{'a1' * 10}", "xoxb-123456789012-abcdef", f"sk-{'a1' * 20}"]
)
def test_a_token_of_a_known_form_is_hidden_wherever_it_is(text: str) -> None:
    assert text not in redacted_text(f"started with {text} at noon")


def test_the_word_after_an_option_of_a_list_is_hidden() -> None:
    command = ["spark-submit", "--password", PLAIN, "--verbose", "job.py"]
    assert redacted("replay", command) == ["spark-submit", "--password", HIDDEN, "--verbose", "job.py"]


@pytest.mark.parametrize(
    "text",
    [
        "zk1:2281,zk2:2281/waltz/main",
        "https://example.com:9301/metrics",
        "spiffe://*/node/*",
        "spark-submit --properties-file conf/spark-defaults.conf jobs/replay.py",
        "replica failed partition=3 error='disk full'",
        "",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert redacted_text(text) == text


def test_config_show_hides_secrets_in_values_and_in_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "console.yaml"
    file.write_text(json.dumps({"cluster": "a:1/x", "replay_command": f"replay --token {PLAIN}", "listen": f"https://ada:{PLAIN}@x"}))
    for output in ("table", "json"):
        show("console", file, changed=False, output=output, environment={})
    file.write_text(json.dumps({"cluster": "a:1/x", "sample_interval_s": f"https://ada:{PLAIN}@x"}))
    show("console", file, changed=False, output="json", environment={})
    shown = capsys.readouterr()
    assert HIDDEN in shown.out
    assert PLAIN not in shown.out + shown.err


@pytest.mark.parametrize("unit", ["a", "-", "a.", "password", "eyJ", "://", "a://b:", "?a=", "&", "=", "--token ", "'", '"\\', "Basic "])
def test_the_time_grows_with_the_size_of_the_text(unit: str) -> None:
    """A peer chooses parts of a log."""
    text = unit * (400_000 // len(unit))
    began = time.process_time()
    redacted_text(text)
    assert time.process_time() - began < 10
