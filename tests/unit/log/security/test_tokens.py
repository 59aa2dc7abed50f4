"""Tokens: which are accepted, why the others are refused, keys that change, and what a port makes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from waltz_log.errors import InvalidSetting, PermissionDenied
from waltz_log.security import tokens
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.callers import caller
from waltz_log.security.identity import Identity, Role
from waltz_log.security.settings import TokenSettings, tls_environment
from waltz_log.security.tokens import LEEWAY_S, TOKEN_BYTES_MAX, TokenFile, Tokens
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork

NOW_S = 1_700_000_000.0
ISSUER, AUDIENCE = "https://login.example.com", "waltz-main"


@dataclass
class _Issuer:
    path: Path
    kid: str = "first"

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.publish()

    def publish(self, **more: Any) -> None:
        public = json.loads(ECAlgorithm.to_jwk(self.key.public_key())) | {"kid": self.kid, "alg": "ES256", **more}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"keys": [public]}))
        new.replace(self.path)

    def sign(self, headers: dict[str, Any] | None = None, **changed: Any) -> str:
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "jobs/nightly", "exp": NOW_S + 600, **changed}
        given = {name: each for name, each in claims.items() if each is not None}
        return jwt.encode(given, self.key, "ES256", headers={"kid": self.kid, **(headers or {})})


@pytest.fixture
def issuer(tmp_path: Path) -> _Issuer:
    return _Issuer(tmp_path / "keys.json")


def _settings(issuer: _Issuer) -> TokenSettings:
    return TokenSettings(issuer=ISSUER, audience=AUDIENCE, keys=issuer.path, applications=("jobs/*",), readers=("reports/*",))


@pytest.fixture
def checked(issuer: _Issuer, monkeypatch: pytest.MonkeyPatch) -> Tokens:
    monkeypatch.setattr(tokens, "CHECK_S", 0.0)
    return Tokens(_settings(issuer), now_s=lambda: NOW_S)


def test_the_subject_is_the_principal_and_patterns_give_it_roles(issuer: _Issuer, checked: Tokens) -> None:
    assert checked.identify(issuer.sign()) == Identity("jobs/nightly", frozenset({Role.APPLICATION}))
    assert checked.identify(issuer.sign(sub="reports/a")) == Identity("reports/a", frozenset({Role.READER}))
    assert checked.identify(issuer.sign(sub="unknown")) == Identity("unknown", frozenset())


def test_no_token_makes_a_node(issuer: _Issuer, checked: Tokens) -> None:
    assert Role.NODE not in checked.identify(issuer.sign(sub="spiffe://waltz/node/storage-0", roles=["node"])).roles


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": "another"}, "another audience"),
        ({"iss": "https://elsewhere"}, "another issuer"),
        ({"exp": NOW_S - LEEWAY_S - 1}, "has expired"),
        ({"exp": None}, "not a token, or its signature"),
        ({"sub": None}, "not a token, or its signature"),
        ({"nbf": NOW_S + LEEWAY_S + 1}, "not valid yet"),
        ({"exp": "tomorrow"}, "times are not numbers"),
    ],
)
def test_a_token_with_wrong_claims_is_refused_with_the_reason(issuer: _Issuer, checked: Tokens, changed: dict[str, Any], reason: str) -> None:
    token = issuer.sign(**changed)
    with pytest.raises(PermissionDenied, match=f"the token is refused, .*{reason}") as refused:
        checked.identify(token)
    assert token not in str(refused.value)


def test_a_token_that_another_key_or_no_key_signed_is_refused(issuer: _Issuer, checked: Tokens, tmp_path: Path) -> None:
    stranger = _Issuer(tmp_path / "other.json")
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "jobs/nightly", "exp": NOW_S + 600}
    forged = [
        stranger.sign(),
        stranger.sign(headers={"kid": "unknown"}),
        jwt.encode(claims, "", "none", headers={"kid": "first"}),
        jwt.encode(claims, issuer.path.read_text() * 2, "HS256", headers={"kid": "first"}),
        issuer.sign()[:-4] + "AAAA",
        "",
        "a.b.c",
        "x" * (TOKEN_BYTES_MAX + 1),
    ]
    for token in forged:
        with pytest.raises(PermissionDenied):
            checked.identify(token)


def test_keys_are_read_again_when_they_change_and_kept_when_they_are_broken(
    issuer: _Issuer, checked: Tokens, capsys: pytest.CaptureFixture[str]
) -> None:
    old = issuer.sign()
    issuer.path.write_text("{broken")
    assert checked.identify(old).principal == "jobs/nightly"
    shown = capsys.readouterr()
    assert "new token keys refused" in shown.out + shown.err
    issuer.__post_init__()
    assert checked.identify(issuer.sign()).principal == "jobs/nightly"
    with pytest.raises(PermissionDenied):
        checked.identify(old)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"keys": [{"kty": "none"}]}'])
def test_a_file_without_keys_is_named_at_start(issuer: _Issuer, text: str | None) -> None:
    issuer.path.unlink()
    if text is not None:
        issuer.path.write_text(text)
    with pytest.raises(InvalidSetting, match=r"tls\.tokens\.keys.*keys\.json"):
        Tokens(_settings(issuer))


def test_a_client_reads_its_token_again_when_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "CHECK_S", 0.0)
    path = tmp_path / "token"
    with pytest.raises(InvalidSetting, match=r"tls\.token"):
        TokenFile(path).metadata()
    path.write_text("one\n")
    file = TokenFile(path)
    assert file.metadata() == (("authorization", "Bearer one"),)
    path.write_text("another\n")
    assert file.metadata() == (("authorization", "Bearer another"),)
    path.unlink()
    assert file.metadata() == (("authorization", "Bearer another"),)


async def test_the_caller_at_a_port_comes_from_the_token_and_without_one_from_the_certificate(issuer: _Issuer, tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path / "authority")
    seen: list[Identity | None] = []
    refused: list[str] = []

    async def bound(_request: pb.BoundRequest) -> pb.BoundResponse:
        seen.append(caller())
        return pb.BoundResponse()

    node = authority.issue("node", "served").model_copy(update={"tokens": _settings(issuer)})
    listener = await GrpcNetwork(-1, tls=node).serve("127.0.0.1:0", [methods.BOUND.served_by(bound)])
    path = tmp_path / "token"
    client = authority.issue("reader", "spark")
    with_token = client.model_copy(update={"token": path})
    assert tls_environment(with_token)["WALTZ_TLS_TOKEN"] == str(path)
    try:
        for tls, text in ((client, ""), (with_token, issuer.sign(exp=4_000_000_000)), (with_token, issuer.sign(exp=NOW_S))):
            path.write_text(text)
            channel = GrpcNetwork(tls=tls).connect(listener.address)
            try:
                await channel.call(methods.BOUND, pb.BoundRequest(), timeout_s=10)
            except PermissionDenied as error:
                refused.append(error.reason)
            finally:
                await channel.close()
    finally:
        await listener.close()
    assert seen == [
        Identity("spiffe://waltz/reader/spark", frozenset({Role.READER})),
        Identity("jobs/nightly", frozenset({Role.APPLICATION})),
    ]
    assert refused == ["the token is refused, it has expired"]
