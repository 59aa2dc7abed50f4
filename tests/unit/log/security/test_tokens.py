"""Tokens: which are accepted, why the others are refused, keys that change, and what a port makes of them."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from waltz_log.errors import InvalidSetting, PermissionDenied
from waltz_log.security import changing_file, token_keys
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.callers import caller
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import Identity, Role
from waltz_log.security.settings import TokenSettings, tls_environment
from waltz_log.security.token_file import TokenFile
from waltz_log.security.tokens import LEEWAY_S, TOKEN_BYTES_MAX, Tokens
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.admitted import Gate
from waltz_log.transport.grpc import GrpcNetwork

NOW_S = 1_700_000_000.0
ISSUER, AUDIENCE = "https://login.example.com", "waltz-main"


WRONG_TIMES = [math.nan, math.inf, -math.inf, -1, 10**30, 1e300, 10**400, "1700000600", True, False, [1], {}, ""]


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
    monkeypatch.setattr(changing_file, "CHECK_S", 0.0)
    return Tokens(_settings(issuer), now_s=lambda: NOW_S)


def test_the_subject_is_the_principal_and_patterns_give_it_roles(issuer: _Issuer, checked: Tokens) -> None:
    assert checked.identify(issuer.sign()).identity == Identity("jobs/nightly", frozenset({Role.APPLICATION}))
    assert checked.identify(issuer.sign(sub="reports/a")).identity == Identity("reports/a", frozenset({Role.READER}))
    assert checked.identify(issuer.sign(sub="unknown")).identity == Identity("unknown", frozenset())


def test_no_token_makes_a_node(issuer: _Issuer, checked: Tokens) -> None:
    assert Role.NODE not in checked.identify(issuer.sign(sub="spiffe://waltz/node/storage-0", roles=["node"])).identity.roles


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
        *(({name: wrong}, "times are not numbers") for name in ("exp", "nbf", "iat") for wrong in WRONG_TIMES),
        ({"iat": NOW_S + LEEWAY_S + 1}, "not valid yet"),
        ({"sub": "waltz/cluster"}, "subject is not a valid name"),
        ({"sub": ""}, "subject is not a valid name"),
        ({"sub": "jobs/a\x1b[31m"}, "subject is not a valid name"),
        ({"sub": "jobs/" + "a" * 256}, "subject is not a valid name"),
        ({"cnf": {"jkt": "x"}}, "bound in another way"),
        ({"cnf": {"x5t#S256": "x", "jkt": "x"}}, "bound in another way"),
        ({"cnf": "x"}, "bound in another way"),
        ({"cnf": {"x5t#S256": "x"}}, "owner of another certificate"),
        ({"cnf": {"x5t#S256": None}}, "owner of another certificate"),
    ],
)
def test_a_token_with_wrong_claims_is_refused_with_the_reason(issuer: _Issuer, checked: Tokens, changed: dict[str, Any], reason: str) -> None:
    token = issuer.sign(**changed)
    with pytest.raises(PermissionDenied, match=f"the token is refused, .*{reason}") as refused:
        checked.identify(token)
    assert token not in str(refused.value)


def test_times_may_have_fractions_and_be_absent_except_the_end(issuer: _Issuer, checked: Tokens) -> None:
    assert checked.identify(issuer.sign(exp=NOW_S + 0.5, nbf=NOW_S - 0.5, iat=0)).ends_s == NOW_S + 0.5
    with pytest.raises(PermissionDenied, match="not a token"):
        checked.identify(issuer.sign(exp=None))


def test_a_token_of_deeply_nested_json_is_refused(issuer: _Issuer, checked: Tokens) -> None:
    for part in (b"[" * 6000, b'{"a":' * 2000):
        segment = base64.urlsafe_b64encode(part).rstrip(b"=").decode()
        with pytest.raises(PermissionDenied):
            checked.identify(f"{segment}.{segment}.{segment}")


def test_a_bound_token_counts_from_the_owner_of_its_certificate_alone(issuer: _Issuer, checked: Tokens, tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path / "authority")
    mine, theirs = (authority.issue("application", name).certificate.read_bytes() for name in ("jobs", "others"))
    thumbprint = base64.urlsafe_b64encode(hashlib.sha256(ssl.PEM_cert_to_DER_cert(mine.decode())).digest()).rstrip(b"=").decode()
    bound = issuer.sign(cnf={"x5t#S256": thumbprint})
    assert checked.identify(bound, mine).identity.principal == "jobs/nightly"
    for other in (theirs, b""):
        with pytest.raises(PermissionDenied, match="it belongs to the owner of another certificate"):
            checked.identify(bound, other)
    strict = Tokens(_settings(issuer).model_copy(update={"bound": True}), now_s=lambda: NOW_S)
    assert strict.identify(bound, mine).identity.principal == "jobs/nightly"
    with pytest.raises(PermissionDenied, match=r"names no certificate.*tokens\.bound"):
        strict.identify(issuer.sign(), mine)


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
    assert checked.identify(old).identity.principal == "jobs/nightly"
    shown = capsys.readouterr()
    assert "new token keys refused" in shown.out + shown.err
    issuer.__post_init__()
    assert checked.identify(issuer.sign()).identity.principal == "jobs/nightly"
    with pytest.raises(PermissionDenied):
        checked.identify(old)


SECRET = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "first", "alg": "HS256"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"keys": []}', '{"keys": [1, null, {}]}', json.dumps({"keys": [SECRET]}), '{"keys": {}}', "[" * 100_000, " " * 2_000_000],
    ids=lambda text: text[:24],
)
def test_keys_stay_when_the_new_file_has_none_that_can_be_used(
    issuer: _Issuer, checked: Tokens, capsys: pytest.CaptureFixture[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = checked.identify(issuer.sign())
    issuer.path.write_text(text)
    assert checked.identify(issuer.sign()) == credential
    assert checked.ended(credential) is None
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("new token keys refused") == 1
    monkeypatch.setattr(token_keys, "REPEAT_S", 0.0)
    assert checked.ended(credential) is None
    shown = capsys.readouterr()
    assert "new token keys refused" in shown.out + shown.err, "the alarm is repeated while the file is unusable"
    monkeypatch.undo()
    issuer.publish()
    assert checked.identify(issuer.sign()) == credential


def test_a_credential_ends_with_its_time_and_with_its_key(issuer: _Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_file, "CHECK_S", 0.0)
    now = [NOW_S]
    tokens = Tokens(_settings(issuer), now_s=lambda: now[0])
    credential = tokens.identify(issuer.sign())
    now[0] += 600 + LEEWAY_S - 1
    assert tokens.ended(credential) is None
    now[0] += 1
    assert tokens.ended(credential) == "it has expired"
    now[0] = NOW_S
    issuer.publish(use="sig")
    assert tokens.ended(credential) is None, "the same key, published again"
    issuer.__post_init__()
    assert tokens.ended(credential) == "its key is no longer among the node's keys", "another key with the same id"


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"keys": [{"kty": "none"}]}', json.dumps({"keys": [SECRET]})])
def test_a_file_without_keys_is_named_at_start(issuer: _Issuer, text: str | None) -> None:
    issuer.path.unlink()
    if text is not None:
        issuer.path.write_text(text)
    with pytest.raises(InvalidSetting, match=r"tls\.tokens\.keys.*keys\.json"):
        Tokens(_settings(issuer))


def test_a_client_reads_its_token_again_when_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_file, "CHECK_S", 0.0)
    path = tmp_path / "token"
    with pytest.raises(InvalidSetting, match=r"tls\.token"):
        TokenFile(path).metadata()
    path.write_text("one\n")
    file = TokenFile(path)
    assert file.metadata() == (("authorization", "Bearer one"),)
    path.write_text("another\n")
    assert file.metadata() == (("authorization", "Bearer another"),)
    for broken in ("", "\n", "two tokens", "a\nb", "\x1b[31m", "é", "x" * 100_000):
        path.write_text(broken)
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


@pytest.mark.parametrize("sent", ["bearer {}", "BEARER   {}", "Bearer {}"])
async def test_the_scheme_of_a_token_has_any_case(issuer: _Issuer, tmp_path: Path, sent: str) -> None:
    assert await _caller_of(issuer, tmp_path, (("authorization", sent.format(issuer.sign(exp=4_000_000_000))),)) == "jobs/nightly"


@pytest.mark.parametrize("sent", [("Basic {}",), ("bearer",), ("{}",), ("",), ("Bearer {}", "Bearer {}")])
async def test_an_authorization_that_is_no_token_is_refused_instead_of_ignored(issuer: _Issuer, tmp_path: Path, sent: tuple[str, ...]) -> None:
    token = issuer.sign(exp=4_000_000_000)
    with pytest.raises(PermissionDenied, match="must be one bearer token"):
        await _caller_of(issuer, tmp_path, tuple(("authorization", each.format(token)) for each in sent))


async def _caller_of(issuer: _Issuer, tmp_path: Path, metadata: tuple[tuple[str, str], ...]) -> str | None:
    """The principal of a client with a certificate that sends the metadata, at the gate of a node that accepts tokens."""
    node = DevelopmentAuthority(tmp_path / "authority").issue("node", "served").model_copy(update={"tokens": _settings(issuer)})
    context = SimpleNamespace(auth_context=lambda: {"ssl_tls_version": [b"TLSv1.3"]}, invocation_metadata=lambda: metadata)
    found = Gate(Certificates(node)).identity(context)
    return None if found is None else found.principal
